// SPDX-License-Identifier: Apache-2.0
#include "model/networks/shards.hpp"

#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {

NetworkKey tensor_network_key(std::string meaning) {
  return {.name = tensor_key,
          .default_value = std::vector{1},
          .meaning = std::move(meaning),
          .interval = from_1_to(1 << 18),
          .cuts_only = true};
}

std::vector<std::size_t> shards_of_layers(const ModelConfig& config) {
  const auto given = option<std::vector<int>>(config, tensor_key);
  const std::size_t layers = index(option(config, "layers"));
  if (given.size() == 1) return std::vector<std::size_t>(layers, index(given.front()));
  if (given.size() == layers) return {given.begin(), given.end()};
  throw InputError(fmt::format("model.tensor: {} values for model.layers, {}", given.size(), layers));
}

void require_shards_divide(const ModelConfig& config, std::string_view name, int value) {
  for (const int shards : option<std::vector<int>>(config, tensor_key)) {
    if (value % shards == 0) continue;
    throw InputError(fmt::format("model.tensor: {} does not divide model.{}, {}", shards, name, value));
  }
}

StageOp with_pieces(StageOp op, const Shard& shard, std::vector<Piece> pieces) {
  if (shard.of > 1) op.pieces = std::move(pieces);
  return op;
}

}  // namespace starpipe::model
