// SPDX-License-Identifier: Apache-2.0
#include "model/networks/language_model.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"

namespace starpipe::model {
namespace {

constexpr const char* tied_key = "tied";
constexpr const char* head_weight = "lm_head.weight";

/// Returns the cross entropy of a head, which may be in shards.
std::shared_ptr<const Loss> cross_entropy_of_head(const ModelConfig& config, std::size_t rows) {
  // The two numbers of each shard are floats in any precision.
  if (config.vocabulary.shards > 1)
    return make_loss("joined_cross_entropy", rows, 2 * index(config.vocabulary.shards), Precision::fp32);
  return make_loss("cross_entropy", rows, index(option(config, "vocabulary")), config.precision);
}

std::vector<NetworkKey> language_model_keys(std::vector<NetworkKey> sizes, std::vector<NetworkKey> values) {
  std::vector<NetworkKey> keys = {
      {"layers", 4, "Number of transformer blocks.", from_1_to(1 << 16)},
      {"hidden", 128, "Columns of the hidden activations.", from_1_to(1 << 18)},
      {"heads", 4, "Attention heads of a block; they divide `hidden`.", from_1_to(1 << 18)}};
  std::ranges::move(sizes, std::back_inserter(keys));
  keys.push_back({"context", 128, "Tokens of a sequence.", from_1_to(1 << 20)});
  keys.push_back({"vocabulary", byte_values,
                  "Number of tokens: ids are 0 to `vocabulary` - 1. At least 256 with `data.kind: text`.",
                  from_1_to(1 << 24)});
  std::ranges::move(values, std::back_inserter(keys));
  keys.push_back({.name = tied_key,
                  .default_value = false,
                  .meaning = "True: the head and the token embedding share one table of weights."});
  keys.push_back(tensor_network_key(
      "Shards into which each half of a block is cut (tensor parallelism), or a list with one number for "
      "each block. A number divides `heads`, and of llama `kv_heads` and `intermediate`."));
  keys.push_back(
      {.name = sums_key,
       .default_value = std::string(sums_by_each),
       .meaning = "With `tensor`: where the outputs of shards are added. each: by every shard that reads "
                  "them. one: by a stage of its own, on the first shard's worker, whose output the shards "
                  "read.",
       .words = {sums_by_each, sums_by_one},
       .cuts_only = true});
  return keys;
}

/// Adds rows to a table [n, columns], which has one row per token, until it has `rows`. Does not change a
/// tensor that has enough rows or another rank.
void pad_rows(std::vector<std::size_t>& shape, std::size_t rows) {
  if (shape.size() == 2 && shape[0] > 0) shape[0] = std::max(shape[0], rows);
}

/// Keeps the first `rows` rows of a matrix. Does not change a tensor that has fewer or another rank.
void keep_rows(std::vector<std::size_t>& shape, std::size_t rows) {
  if (shape.size() == 2) shape[0] = std::min(shape[0], rows);
}

}  // namespace

LanguageModel::LanguageModel(const ModelConfig& config, std::size_t microbatch_size)
    : config_(config),
      part_(config.slice.value_or(Piece::Range{0, index(option(config, "context"))})),
      rows_(microbatch_size * part_.count),
      hidden_(index(option(config, "hidden"))),
      heads_(index(option(config, "heads"))) {
  if (hidden_ % heads_ != 0)
    throw InputError(fmt::format("model.heads: {} does not divide model.hidden, {}", heads_, hidden_));
}

void LanguageModel::require_shards() const {
  if (max_shards(config_) == 1 && option<std::string>(config_, sums_key) != sums_by_each) {
    throw InputError(fmt::format("model.sums: {} needs shards, but model.tensor is 1",
                                 option<std::string>(config_, sums_key)));
  }
  require_shards_divide(config_, "heads", option(config_, "heads"));
}

UnitGraph LanguageModel::units() const {
  const std::vector<std::size_t> shards = shards_of_layers(config_);
  std::vector<Unit> chain = {embedding()};
  for (int n = 0; std::cmp_less(n, shards.size()); ++n) chain.push_back(block(n, shards[index(n)]));
  chain.push_back(head());
  return {.rows = rows_,
          .branches = {std::move(chain)},
          .branch_inputs = 1,
          .join = {},
          .loss = cross_entropy_of_head(config_, rows_)};
}

// Shard 0 has the residual connection of a half around its ops. The only shard is the half itself: its ops
// are added to the unit's.
Unit LanguageModel::block(int number, std::size_t shards) const {
  Unit unit = {fmt::format("block {}", number), {}, {{}, {}}};
  for (std::size_t k = 0; k < shards; ++k) {
    std::vector<std::vector<StageOp>> halves_of_shard = halves(number, {k, shards});
    for (std::size_t half = 0; half < halves_of_shard.size(); ++half) {
      std::vector<StageOp>& ops = halves_of_shard[half];
      if (k == 0) {
        ops.insert(ops.begin(), residual_begin());
        ops.push_back(residual_end());
      }
      if (shards == 1) std::ranges::move(ops, std::back_inserter(unit.ops));
      unit.halves[half].push_back(std::move(ops));
    }
  }
  if (shards == 1) unit.halves.clear();
  return unit;
}

StageOp LanguageModel::shared_norm(const std::string& name, const Shard& shard) const {
  StageOp op = norm(name);
  if (shard.of > 1) op.shared = name;
  return op;
}

bool LanguageModel::is_tied() const { return option<bool>(config_, tied_key); }

StageOp LanguageModel::tied_if_asked(const LayerSpec& of) const {
  StageOp op = layer(of);
  if (is_tied()) op.shared = "tokens";
  return op;
}

std::vector<TokenRange> LanguageModel::vocabulary_shards() const {
  const std::size_t vocabulary = index(option(config_, "vocabulary"));
  const std::size_t shards = index(config_.vocabulary.shards);
  if (shards > vocabulary) {
    throw InputError(
        fmt::format("schedule.vocabulary.shards: {} is more than model.vocabulary, {}", shards, vocabulary));
  }
  std::vector<TokenRange> all;
  for (std::size_t k = 0; k < shards; ++k) {
    const Piece::Range ids = share_of(vocabulary, k, shards);
    all.push_back({ids.first, ids.count, true});
  }
  return all;
}

// The layer's weight has the rows of the shard's tokens. With a tied head, embedding and head share the rows
// of each shard.
StageOp LanguageModel::shard_of(const LayerSpec& of, std::size_t shard) const {
  StageOp op = layer(of);
  op.pieces = {
      rows_piece(index(option(config_, "vocabulary")), hidden_, shard, index(config_.vocabulary.shards))};
  if (is_tied()) op.shared = fmt::format("tokens {}", shard);
  return op;
}

Unit LanguageModel::embedding_of(const LayerSpec& table, const std::vector<StageOp>& after) const {
  Unit unit = {.name = "embedding", .ops = {}};
  if (!has_vocabulary_shards()) {
    unit.ops = after;
    unit.ops.insert(unit.ops.begin(), tied_if_asked(table));
    return unit;
  }
  std::vector<std::vector<StageOp>> shards;
  for (const TokenRange& tokens : vocabulary_shards()) {
    LayerSpec of_shard = table;
    of_shard.options["vocabulary"] = static_cast<double>(tokens.count);
    of_shard.options["first"] = static_cast<double>(tokens.first);
    shards.push_back({shard_of(of_shard, shards.size())});
  }
  shards.front().insert(shards.front().end(), after.begin(), after.end());
  unit.halves = {std::move(shards)};
  unit.detached = true;
  return unit;
}

Unit LanguageModel::head_of(const std::string& norm_name, const LayerSpec& output) const {
  Unit unit = {.name = "head", .ops = {norm(norm_name)}};
  if (!has_vocabulary_shards()) {
    unit.ops.push_back(tied_if_asked(output));
    return unit;
  }
  std::vector<std::vector<StageOp>> shards;
  for (const TokenRange& tokens : vocabulary_shards()) {
    LayerSpec of_shard = output;
    of_shard.options["outputs"] = static_cast<double>(tokens.count);
    const LayerSpec partial = spec("partial_cross_entropy", output.name, tokens.count,
                                   {{"first", static_cast<double>(tokens.first)}});
    shards.push_back({shard_of(of_shard, shards.size()), layer(partial)});
  }
  unit.halves = {std::move(shards)};
  unit.detached = true;
  unit.join = Join::columns;
  return unit;
}

NetworkKind language_model_kind(std::string name, std::string meaning, std::vector<NetworkKey> sizes,
                                std::vector<NetworkKey> values, decltype(NetworkKind::units) units,
                                const SavedNames& saved) {
  NetworkKind kind = {.name = std::move(name),
                      .meaning = std::move(meaning),
                      .data = {std::string(text_data), std::string(tokens_data)},
                      .keys = language_model_keys(std::move(sizes), std::move(values)),
                      .units = std::move(units)};
  kind.weight_name = [saved](const std::string& tensor) -> std::string {
    const auto ends_tensor = [&](const std::string& end) { return tensor.ends_with(end); };
    if (std::ranges::any_of(saved.not_weights, ends_tensor)) return "";
    return tensor.starts_with(saved.prefix) || tensor == head_weight ? tensor : saved.prefix + tensor;
  };
  kind.complete_weights = [saved](std::map<std::string, SavedTensor>& tensors, const ModelConfig& config) {
    const auto positions = tensors.find(saved.positions);
    if (positions != tensors.end()) keep_rows(positions->second.shape, index(option(config, "context")));
    const auto embedding = tensors.find(saved.embedding);
    if (embedding == tensors.end()) return;
    const std::size_t rows = index(option(config, "vocabulary"));
    if (option<bool>(config, tied_key)) {
      if (tensors.erase(std::string(head_weight)) > 0) embedding->second.equal_to = head_weight;
      pad_rows(embedding->second.shape, rows);
      return;
    }
    SavedTensor& head = tensors.try_emplace(head_weight, embedding->second).first->second;
    pad_rows(embedding->second.shape, rows);
    pad_rows(head.shape, rows);
  };
  return kind;
}

}  // namespace starpipe::model
