// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace starpipe {

// FNV-1a: a hash that is the same on every machine. It detects accidental differences, not forged ones.

/// The hash of empty data: where a hash begins.
inline constexpr std::uint64_t hash_start = 14695981039346656037U;

/// Continues `hash`, the hash of the data so far, with `word`.
constexpr std::uint64_t hash_of(std::uint64_t word, std::uint64_t hash) {
  return (hash ^ word) * 1099511628211U;
}

/// Continues `hash` with the text, byte by byte.
constexpr std::uint64_t hash_of(std::string_view text, std::uint64_t hash) {
  for (const char c : text) hash = hash_of(std::uint64_t{static_cast<unsigned char>(c)}, hash);
  return hash;
}

}  // namespace starpipe
