// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>

namespace starpipe {

/// Random numbers that are the same with every standard library; the distributions of <random> differ.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// Returns a number in [0, n).
  std::size_t below(std::size_t n) { return engine_() % n; }
  /// Returns a number in [low, high].
  int between(int low, int high) {
    return low + static_cast<int>(below(static_cast<std::size_t>(high) - static_cast<std::size_t>(low) + 1));
  }
  /// True with probability `share`.
  bool chance(double share) { return uniform(0, 1) < share; }
  /// Returns a number in [low, high).
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(engine_() >> 11U) * 0x1p-53);
  }

 private:
  std::mt19937_64 engine_;
};

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
