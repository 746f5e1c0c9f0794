// SPDX-License-Identifier: Apache-2.0
// Layers and residual connections of which tests of stages are made.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "starpipe/model/layer.hpp"
#include "starpipe/model/stage.hpp"

namespace starpipe::model::testing {

inline constexpr std::size_t context_length = 6;
inline constexpr std::size_t row_count = 2 * context_length;

inline StageOp layer(const LayerSpec& spec) { return {StageOp::Kind::layer, make_layer(spec)}; }
inline StageOp begin() { return {StageOp::Kind::residual_begin, nullptr}; }
inline StageOp end() { return {StageOp::Kind::residual_end, nullptr}; }
inline StageOp linear(const std::string& name, std::size_t inputs, double outputs) {
  return layer({"linear", name, row_count, inputs, {{"outputs", outputs}}});
}

inline StageOp embedding() {
  return layer({"embedding",
                "e",
                row_count,
                1,
                {{"vocabulary", 11.0}, {"context", double{context_length}}, {"outputs", 8.0}}});
}

/// A transformer block.
inline std::vector<StageOp> block() {
  return {begin(),
          layer({"layernorm", "ln_1", row_count, 8, {}}),
          linear("c_attn", 8, 24),
          layer({"attention", "attn", row_count, 24, {{"heads", 2.0}, {"context", double{context_length}}}}),
          linear("c_proj", 8, 8),
          end(),
          begin(),
          layer({"layernorm", "ln_2", row_count, 8, {}}),
          linear("c_fc", 8, 16),
          layer({"gelu", "act", row_count, 16, {}}),
          linear("proj", 16, 8),
          end()};
}

inline std::vector<StageOp> chained(std::vector<std::vector<StageOp>> parts) {
  std::vector<StageOp> all;
  for (const std::vector<StageOp>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace starpipe::model::testing
