// SPDX-License-Identifier: Apache-2.0
#include "model/networks/shards.hpp"

#include <iterator>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "model/networks/saved_names.hpp"
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

NetworkKey tensor_key_of_blocks() {
  return tensor_network_key(
      "Shards into which each half of a block is cut (tensor parallelism), or a list with one number for "
      "each block. A number divides `heads`, and of llama `kv_heads` and `intermediate`.");
}

NetworkKey sums_network_key() {
  return {.name = sums_key,
          .default_value = std::string(sums_by_each),
          .meaning =
              "With `tensor`: where the outputs of shards are added. each: by every shard that reads "
              "them. one: by a stage of its own, on the first shard's worker, whose output the shards "
              "read.",
          .words = {sums_by_each, sums_by_one},
          .cuts_only = true};
}

std::vector<std::size_t> shards_of_layers(const ModelConfig& config) {
  const auto given = option<std::vector<int>>(config, tensor_key);
  const std::size_t layers = index(option(config, "layers"));
  if (given.size() == 1) return std::vector<std::size_t>(layers, index(given.front()));
  if (given.size() == layers) return {given.begin(), given.end()};
  throw InputError(fmt::format("model.tensor: {} values for model.layers, {}", given.size(), layers));
}

void require_sums_of_shards(const ModelConfig& config) {
  if (max_shards(config) > 1 || option<std::string>(config, sums_key) == sums_by_each) return;
  throw InputError(fmt::format("model.sums: {} needs shards, but model.tensor is 1",
                               option<std::string>(config, sums_key)));
}

void require_shards_divide(const ModelConfig& config, std::string_view name, int value) {
  for (const int shards : option<std::vector<int>>(config, tensor_key)) {
    if (value % shards == 0) continue;
    throw InputError(fmt::format("model.tensor: {} does not divide model.{}, {}", shards, name, value));
  }
}

void add_half(Unit& unit, std::size_t shards, const OpsOfShard& ops_of_shard) {
  std::vector<std::vector<StageOp>> half;
  for (std::size_t k = 0; k < shards; ++k) half.push_back(ops_of_shard({k, shards}));
  std::vector<StageOp>& first = half.front();
  first.insert(first.begin(), residual_begin());
  first.push_back(residual_end());
  if (shards > 1) {
    unit.halves.push_back(std::move(half));
  } else {
    unit.ops.insert(unit.ops.end(), std::make_move_iterator(first.begin()),
                    std::make_move_iterator(first.end()));
  }
}

StageOp with_pieces(StageOp op, const Shard& shard, std::vector<Piece> pieces) {
  if (shard.of > 1) op.pieces = std::move(pieces);
  return op;
}

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
