// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace starpipe {

/// Random numbers that are the same with every standard library, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  /// In [0, n).
  std::size_t below(std::size_t n) { return engine_() % n; }
  /// In [low, high].
  int between(int low, int high) {
    return low + static_cast<int>(below(static_cast<std::size_t>(high) - static_cast<std::size_t>(low) + 1));
  }
  bool chance(double share) { return uniform(0, 1) < share; }
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(engine_() >> 11U) * 0x1p-53);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace starpipe
