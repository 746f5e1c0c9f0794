// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace starpipe {

/// Random numbers that are the same with every standard library; the distributions of <random> differ.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// A number in [0, n).
  std::size_t below(std::size_t n) { return engine_() % n; }
  /// A number in [low, high].
  int between(int low, int high) {
    return low + static_cast<int>(below(static_cast<std::size_t>(high) - static_cast<std::size_t>(low) + 1));
  }
  /// True with probability `share`.
  bool chance(double share) { return uniform(0, 1) < share; }
  /// A number in [low, high).
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(engine_() >> 11U) * 0x1p-53);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace starpipe
