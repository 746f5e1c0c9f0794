// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/memory_view.hpp"

#include "model/bf16.hpp"
#include "model/full_width.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {

std::string_view to_string(Precision precision) { return precision_words[index(precision)]; }

void round_to_bf16(ConstFloatView from, Memory to) noexcept {
  auto* const out = to.as<Bf16>();
  at_full_width([&] {
    for (std::size_t i = 0; i < from.size(); ++i) out[i] = from[i];
  });
}

void widen_bf16(ConstMemory from, FloatView to) noexcept {
  const auto* const in = from.as<Bf16>();
  at_full_width([&] {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = in[i];
  });
}

}  // namespace starpipe::model
