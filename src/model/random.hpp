// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <span>
#include <vector>

namespace starpipe::model {

/// Returns a random generator seeded with the two halves of `seed`, then `words`. Every array that is drawn
/// has a generator of its own, with its own words: so its numbers do not depend on what else any rank draws.
inline std::mt19937_64 generator(std::uint64_t seed, std::span<const std::uint32_t> words) {
  std::vector<std::uint32_t> all = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  all.insert(all.end(), words.begin(), words.end());
  std::seed_seq sequence(all.begin(), all.end());
  return std::mt19937_64(sequence);
}

/// Returns a number that is not negative as a word of a seed.
inline std::uint32_t seed_word(int value) { return static_cast<std::uint32_t>(value); }

/// Standard normal numbers by Box and Muller's method, the same everywhere: std::normal_distribution gives
/// other numbers with another standard library.
class Normal {
 public:
  explicit Normal(std::mt19937_64 bits) : bits_(bits) {}

  double operator()() {
    if (second_ready_) {
      second_ready_ = false;
      return second_;
    }
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    second_ = radius * std::sin(angle);
    second_ready_ = true;
    return radius * std::cos(angle);
  }

 private:
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(bits_() >> 11) * 0x1p-53; }

  std::mt19937_64 bits_;
  double second_ = 0;
  bool second_ready_ = false;
};

/// Makes the standard normal numbers of an array. Number i depends only on the key and on i, so any thread or
/// rank makes any part of the array, with the same bits. The generator is SplitMix64, whose state is a
/// counter (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
class NormalArray {
 public:
  explicit NormalArray(std::uint64_t key) : key_(key) {}

  /// Calls f(i, number i) for each i of [first, first + count).
  template <class Function>
  void for_each(std::size_t first, std::size_t count, Function&& f) const {
    for (std::size_t pair = first / 2; 2 * pair < first + count; ++pair) {
      // Box and Muller's method: two numbers of two uniform ones.
      const double radius = std::sqrt(-2 * std::log(1 - uniform(2 * pair)));
      const double angle = 2 * std::numbers::pi * uniform(2 * pair + 1);
      if (2 * pair >= first) f(2 * pair, radius * std::cos(angle));
      if (2 * pair + 1 < first + count) f(2 * pair + 1, radius * std::sin(angle));
    }
  }

 private:
  /// Uniform in [0, 1).
  [[nodiscard]] double uniform(std::uint64_t i) const {
    std::uint64_t bits = key_ + (i + 1) * 0x9E3779B97F4A7C15U;
    bits = (bits ^ bits >> 30U) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ bits >> 27U) * 0x94D049BB133111EBU;
    return static_cast<double>((bits ^ bits >> 31U) >> 11U) * 0x1p-53;
  }

  std::uint64_t key_;
};

}  // namespace starpipe::model
