// SPDX-License-Identifier: Apache-2.0
// Layers in shards side by side: tensor parallelism.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {

/// Returns the key `tensor`. `meaning`: what the kind cuts into shards.
NetworkKey tensor_network_key(std::string meaning);

/// Returns T of each of the kind's `layers`. Throws InputError for a list of another length.
std::vector<std::size_t> shards_of_layers(const ModelConfig& config);

/// Throws InputError unless each number of `model.tensor` divides `value`, the value of the key `name`.
void require_shards_divide(const ModelConfig& config, std::string_view name, int value);

/// Shard k of T.
struct Shard {
  std::size_t k;
  std::size_t of;
};

/// Returns the op of a shard, with a piece for each of its parameters; the op of the only shard has whole
/// tensors.
StageOp with_pieces(StageOp op, const Shard& shard, std::vector<Piece> pieces);

}  // namespace starpipe::model
