// SPDX-License-Identifier: Apache-2.0
#include "model/networks/vocabulary_shards.hpp"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/networks/saved_names.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

/// The tokens of a shard.
struct Tokens {
  std::size_t shard;
  std::size_t shards;
  Piece::Range ids;
};

std::vector<Tokens> tokens_of_shards(const ModelConfig& config) {
  const std::size_t vocabulary = index(option(config, "vocabulary"));
  const std::size_t shards = index(config.vocabulary.shards);
  if (shards > vocabulary) {
    throw InputError(
        fmt::format("schedule.vocabulary.shards: {} is more than model.vocabulary, {}", shards, vocabulary));
  }
  std::vector<Tokens> all;
  for (std::size_t k = 0; k < shards; ++k) all.push_back({k, shards, share_of(vocabulary, k, shards)});
  return all;
}

/// A layer whose weight has the rows of the shard's tokens. With a tied head, embedding and head share the
/// rows of each shard.
StageOp layer_of(const ModelConfig& config, const LayerSpec& spec, const Tokens& tokens,
                 std::size_t columns) {
  StageOp op = layer_op(spec, config.precision);
  op.pieces = {rows_piece(index(option(config, "vocabulary")), columns, tokens.shard, tokens.shards)};
  if (option<bool>(config, tied_key)) op.shared = fmt::format("tokens {}", tokens.shard);
  return op;
}

}  // namespace

Unit embedding_in_shards(const ModelConfig& config, const LayerSpec& table,
                         const std::vector<StageOp>& after) {
  std::vector<std::vector<StageOp>> shards;
  for (const Tokens& tokens : tokens_of_shards(config)) {
    LayerSpec spec = table;
    spec.options["vocabulary"] = static_cast<double>(tokens.ids.count);
    spec.options["first"] = static_cast<double>(tokens.ids.first);
    std::vector<StageOp>& ops = shards.emplace_back();
    ops.push_back(layer_of(config, spec, tokens, size_option(table, "outputs")));
    if (tokens.shard == 0) ops.insert(ops.end(), after.begin(), after.end());
  }
  return {.name = "embedding", .ops = {}, .halves = {std::move(shards)}, .detached = true};
}

Unit head_in_shards(const ModelConfig& config, StageOp norm, const LayerSpec& output) {
  std::vector<std::vector<StageOp>> shards;
  for (const Tokens& tokens : tokens_of_shards(config)) {
    LayerSpec spec = output;
    spec.options["outputs"] = static_cast<double>(tokens.ids.count);
    shards.push_back({layer_of(config, spec, tokens, output.columns),
                      layer_op({"partial_cross_entropy",
                                output.name,
                                output.rows,
                                tokens.ids.count,
                                {{"first", static_cast<double>(tokens.ids.first)}}},
                               config.precision)});
  }
  return {.name = "head",
          .ops = {std::move(norm)},
          .halves = {std::move(shards)},
          .detached = true,
          .join = Join::columns};
}

std::shared_ptr<const Loss> cross_entropy_of_head(const ModelConfig& config, std::size_t rows) {
  // The two numbers of each shard are floats in any precision.
  if (config.vocabulary.shards > 1)
    return make_loss("joined_cross_entropy", rows, 2 * index(config.vocabulary.shards), Precision::fp32);
  return make_loss("cross_entropy", rows, index(option(config, "vocabulary")), config.precision);
}

}  // namespace starpipe::model
