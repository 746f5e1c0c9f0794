// SPDX-License-Identifier: Apache-2.0
// What networks whose units may be cut into shards share (tensor parallelism).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {

/// The key `tensor`. `meaning`: what the kind cuts into shards.
NetworkKey tensor_network_key(std::string meaning);
/// The keys `tensor` and `sums` of kinds with blocks.
NetworkKey tensor_key_of_blocks();
NetworkKey sums_network_key();

/// T of each of the kind's `layers`. Throws InputError for a list of another length.
std::vector<std::size_t> shards_of_layers(const ModelConfig& config);

/// Throws InputError for sums of shards where there are none.
void require_sums_of_shards(const ModelConfig& config);

/// Throws InputError unless each number of `model.tensor` divides `value`, that of the key `name`.
void require_shards_divide(const ModelConfig& config, std::string_view name, int value);

/// Shard k of T.
struct Shard {
  std::size_t k;
  std::size_t of;
};
using OpsOfShard = std::function<std::vector<StageOp>(const Shard& shard)>;

/// Adds a half of a block to the unit, without its residual connection, which shard 0 has around its ops. The
/// only shard is the half itself: its ops are added to the unit's.
void add_half(Unit& unit, std::size_t shards, const OpsOfShard& ops_of_shard);

/// The op of a shard, with a piece for each of its parameters; the op of the only shard has whole tensors.
StageOp with_pieces(StageOp op, const Shard& shard, std::vector<Piece> pieces);

}  // namespace starpipe::model
