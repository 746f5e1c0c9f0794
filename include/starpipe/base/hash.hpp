// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace starpipe {

// FNV-1a: a hash that is the same on every machine. It finds differences that come about by mistake; it does
// not protect against intent.

/// The hash of nothing.
inline constexpr std::uint64_t hash_start = 14695981039346656037U;

/// The hash of what `hash` stands for, followed by `word`.
constexpr std::uint64_t hash_of(std::uint64_t word, std::uint64_t hash) {
  return (hash ^ word) * 1099511628211U;
}

/// The hash of what `hash` stands for, followed by the text, byte by byte.
constexpr std::uint64_t hash_of(std::string_view text, std::uint64_t hash) {
  for (const char c : text) hash = hash_of(std::uint64_t{static_cast<unsigned char>(c)}, hash);
  return hash;
}

}  // namespace starpipe
