// SPDX-License-Identifier: Apache-2.0
// What only GPUs do in attention, and the emulator.
#include <utility>

#include <gtest/gtest.h>

#include "codelets/devices.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

// The passes of attention on arrays at multiples of 4 bytes only, which cannot be copied by 16.
TEST(Bf16Attention, TakesArraysThatBeginAnywhere) {
  if (!Gpu::missing().empty()) GTEST_SKIP() << "no CUDA device: " << Gpu::missing();
  const Gpu gpu;
  const auto layer = make_layer({"attention", "a", 20, 48, {{"heads", 2}, {"context", 10}}}, Precision::bf16);
  const Floats x = encoded(Precision::bf16, random_floats(20 * 48, 1));
  const Floats g = encoded(Precision::bf16, random_floats(20 * 16, 2));
  // So many words later than a multiple of 16 bytes: what is read, and what is written.
  const auto results_at = [&](std::size_t read, std::size_t written) {
    const auto put = [&](const Floats& values) {
      Floats later(read, kPoison);
      later.insert(later.end(), values.begin(), values.end());
      return DeviceFloats(gpu, later);
    };
    DeviceFloats input = put(x);
    DeviceFloats gradient = put(g);
    DeviceFloats stash(gpu, read + layer->stash_words());
    DeviceFloats output(gpu, written + g.size());
    DeviceFloats input_gradient(gpu, written + x.size());
    DeviceFloats scratch(gpu, layer->scratch_words(true));
    gpu.backend().forward(*layer, {}, input.span().subspan(read), output.span().subspan(written),
                          stash.span().subspan(read), scratch);
    gpu.backend().backward_input(*layer, {}, stash.span().subspan(read), gradient.span().subspan(read),
                                 input_gradient.span().subspan(written), scratch);
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
