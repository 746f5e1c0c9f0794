// SPDX-License-Identifier: Apache-2.0
// Loops in the processor's widest vectors compute the bits of the same loops in the narrowest.
#include "model/full_width.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "codelets/cpu/math.hpp"
#include "model/gradients.hpp"

namespace starpipe::model {
namespace {

struct Results {
  std::vector<std::uint32_t> values;
  std::array<float, 3> reductions;
  bool operator==(const Results&) const = default;
};

/// Computes with functions of the layers, and with products that are added and square roots.
Results compute(const float* x, std::size_t count) {
  Results results{std::vector<std::uint32_t>(count), {}};
  for (std::size_t i = 0; i < count; ++i) {
    const float root = std::sqrt(x[i] * x[i] + 0.1f * x[i] + 1.0f);
    results.values[i] = std::bit_cast<std::uint32_t>(cpu::logistic(3.0f * x[i]) * x[i] + root / 3.0f);
  }
  results.reductions = {cpu::max_of(x, count), cpu::sum_of(count, [x](std::size_t i) { return x[i] * x[i]; }),
                        cpu::sum_of(count, [x](std::size_t i) { return cpu::exp_of(x[i]) + 0.3f * x[i]; })};
  return results;
}

TEST(FullWidth, HasTheSameBits) {
  const std::vector<float> x = testing::random_floats(1100, 5, 4);
  for (std::size_t count : {1UL, 2UL, 7UL, 8UL, 9UL, 15UL, 16UL, 17UL, 33UL, 100UL, 1000UL, 1027UL}) {
    for (std::size_t first = 0; first < 17; ++first) {
      Results wide;
      at_full_width([&] { wide = compute(x.data() + first, count); });
      EXPECT_EQ(wide, compute(x.data() + first, count)) << count << " numbers from " << first;
    }
  }
}

}  // namespace
}  // namespace starpipe::model
