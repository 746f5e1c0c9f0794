// SPDX-License-Identifier: Apache-2.0
// Tests of attention that apply to GPUs only, real or emulated.
#include <utility>

#include <gtest/gtest.h>

#include "codelets/devices.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

// Arrays that begin at a multiple of 4 bytes but not of 16 cannot be copied 16 bytes at a time.
TEST(Bf16Attention, TakesArraysThatBeginAnywhere) {
  if (!Gpu::missing().empty()) GTEST_SKIP() << "no CUDA device: " << Gpu::missing();
  const Gpu gpu;
  const auto layer = make_layer({"attention", "a", 20, 48, {{"heads", 2}, {"context", 10}}}, Precision::bf16);
  const Floats x = encoded(Precision::bf16, random_floats(20 * 48, 1));
  const Floats g = encoded(Precision::bf16, random_floats(20 * 16, 2));
  // Runs F and B with the arrays that they read, and those that they write, so many words behind a multiple
  // of 16 bytes.
  const auto results_at = [&](std::size_t read, std::size_t written) {
    const auto put = [&](const Floats& values) {
      Floats later(read, poison_value);
      later.insert(later.end(), values.begin(), values.end());
      return DeviceFloats(gpu, later);
    };
    DeviceFloats input = put(x);
    DeviceFloats gradient = put(g);
    DeviceFloats stash(gpu, read + layer->stash_words());
    DeviceFloats output(gpu, written + g.size());
    DeviceFloats input_gradient(gpu, written + x.size());
    DeviceFloats scratch(gpu, layer->scratch_words(true));
    gpu.backend().forward(*layer, {{},
                                   input.span().subspan(read),
                                   output.span().subspan(written),
                                   stash.span().subspan(read),
                                   scratch});
    gpu.backend().backward_input(*layer, {{},
                                          stash.span().subspan(read),
                                          gradient.span().subspan(read),
                                          input_gradient.span().subspan(written),
                                          scratch});
    const Floats of_output = output.read("output");
    const Floats of_input = input_gradient.read("input gradient");
    const auto skipped = static_cast<std::ptrdiff_t>(written);
    return std::pair(Floats(of_output.begin() + skipped, of_output.end()),
                     Floats(of_input.begin() + skipped, of_input.end()));
  };
  const auto aligned = results_at(0, 0);
  EXPECT_EQ(results_at(1, 0), aligned);
  EXPECT_EQ(results_at(0, 1), aligned);
}

}  // namespace
}  // namespace starpipe::model
