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

/// The keys `tensor` and `sums` of kinds with blocks.
NetworkKey tensor_network_key();
NetworkKey sums_network_key();

/// Throws InputError for sums of shards where there are none.
void require_sums_of_shards(const ModelConfig& config);

/// Throws InputError unless `model.tensor` divides `value`, that of the key `name`.
void require_shards_divide(const ModelConfig& config, std::string_view name, int value);

/// The ops of shard k.
using OpsOfShard = std::function<std::vector<StageOp>(std::size_t shard)>;

/// Adds a half of a block to the unit, without its residual connection, which shard 0 has around its ops. The
/// only shard is the half itself: its ops are added to the unit's.
void add_half(Unit& unit, std::size_t shards, const OpsOfShard& ops_of_shard);

/// The op of a shard, with a piece for each of its parameters; the op of the only shard has whole tensors.
StageOp with_pieces(StageOp op, std::size_t shards, std::vector<Piece> pieces);

}  // namespace starpipe::model
