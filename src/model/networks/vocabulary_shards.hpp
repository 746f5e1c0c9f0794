// SPDX-License-Identifier: Apache-2.0
// Embedding and head of a network in shards of the vocabulary (Vocabulary Parallelism, MLSys 2025).
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {

/// The embedding in shards, which have a row of the table for each of their tokens. `table`: the whole
/// embedding, which has no positions. `after`: ops that follow it, such as positions; shard 0 has them. The
/// outputs add up to what the embedding and `after` compute.
Unit embedding_in_shards(const ModelConfig& config, const LayerSpec& table,
                         const std::vector<StageOp>& after = {});

/// The head in shards. `norm`: the normalisation, which is whole. `output`: the whole linear layer that gives
/// the logits. Each shard computes the logits of its tokens, and the two numbers of a row from which the loss
/// is computed.
Unit head_in_shards(const ModelConfig& config, StageOp norm, const LayerSpec& output);

/// The cross entropy of a head, which may be in shards.
std::shared_ptr<const Loss> cross_entropy_of_head(const ModelConfig& config, std::size_t rows);

}  // namespace starpipe::model
