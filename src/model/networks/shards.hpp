// SPDX-License-Identifier: Apache-2.0
// What networks whose units may be cut into shards share (tensor parallelism).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {

/// The key `tensor`. `meaning`: what the kind cuts into shards.
NetworkKey tensor_network_key(std::string meaning);
/// The keys `tensor` and `sums` of kinds with blocks.
NetworkKey tensor_key_of_blocks();
NetworkKey sums_network_key();

/// Returns T of each of the kind's `layers`. Throws InputError for a list of another length.
std::vector<std::size_t> shards_of_layers(const ModelConfig& config);

/// Throws InputError for sums of shards where there are none.
void require_sums_of_shards(const ModelConfig& config);

/// Throws InputError unless each number of `model.tensor` divides `value`, the value of the key `name`.
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

/// Returns the cross entropy of a head, which may be in shards.
std::shared_ptr<const Loss> cross_entropy_of_head(const ModelConfig& config, std::size_t rows);

/// Returns the units of a language model for micro-batches of `rows` tokens: embedding, blocks and head,
/// which `layers` makes, and the cross entropy.
template <class Layers>
UnitGraph language_model(const ModelConfig& config, std::size_t rows, const Layers& layers) {
  std::vector<Unit> chain = {layers.embedding()};
  for (int n = 0; n < option(config, "layers"); ++n) chain.push_back(layers.block(n));
  chain.push_back(layers.head());
  return {.rows = rows,
          .branches = {std::move(chain)},
          .branch_inputs = 1,
          .join = {},
          .loss = cross_entropy_of_head(config, rows)};
}

// Embedding and head of a network in shards of the vocabulary (Vocabulary Parallelism, MLSys 2025).

/// The embedding in shards, which have a row of the table for each of their tokens. `table`: the whole
/// embedding, which has no positions. `after`: ops that follow it, such as positions; shard 0 has them. The
/// outputs add up to what the embedding and `after` compute.
Unit embedding_in_shards(const ModelConfig& config, const LayerSpec& table,
                         const std::vector<StageOp>& after = {});

/// The head in shards. `norm`: the normalisation, which is whole. `output`: the whole linear layer that gives
/// the logits. Each shard computes the logits of its tokens, and the two numbers of a row from which the loss
/// is computed.
Unit head_in_shards(const ModelConfig& config, StageOp norm, const LayerSpec& output);

}  // namespace starpipe::model
