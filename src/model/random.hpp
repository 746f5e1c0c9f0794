// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
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

/// Writes mean + deviation * number i to out[i - first], for each i of [first, first + out.size()). Number i
/// is standard normal and depends only on the key and on i, so any thread or rank makes any part of the
/// array. Its bits do not depend on the compiler, the processor or the C library: only sums, products,
/// quotients and square roots are computed, which IEEE 754 defines exactly. Thread-safe.
void normal_numbers(std::uint64_t key, std::size_t first, double mean, double deviation,
                    std::span<float> out);

/// Code that does the same with instructions of one kind.
using NormalNumbers = decltype(&normal_numbers);
/// Returns the codes that this processor can run, fastest last. `normal_numbers` runs the last one.
std::span<const NormalNumbers> normal_numbers_codes();

}  // namespace starpipe::model
