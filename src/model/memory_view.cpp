// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/memory_view.hpp"

#include "model/bf16.hpp"
#include "model/full_width.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {

std::string_view to_string(Precision precision) { return precision_words[index(precision)]; }

void round_to_bf16(ConstFloatView from, Memory to) noexcept {
  at_full_width([&] {
    const std::size_t count = from.size();
    const float* __restrict in = from.data();
    Bf16* __restrict out = to.as<Bf16>();
    for (std::size_t i = 0; i < count; ++i) out[i] = in[i];
  });
}

void widen_bf16(ConstMemory from, FloatView to) noexcept {
  at_full_width([&] {
    const std::size_t count = to.size();
    const Bf16* __restrict in = from.as<Bf16>();
    float* __restrict out = to.data();
    for (std::size_t i = 0; i < count; ++i) out[i] = in[i];
  });
}

}  // namespace starpipe::model
