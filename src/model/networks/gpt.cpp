// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/networks/saved_names.hpp"
#include "model/networks/shards.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {
namespace {

constexpr double deviation = 0.02;  // of GPT-2's start values

/// Makes the layers of a GPT-2 for micro-batches of `rows` tokens.
class Layers {
 public:
  Layers(const ModelConfig& config, std::size_t rows)
      : config_(config),
        rows_(rows),
        hidden_(index(option(config, "hidden"))),
        heads_(index(option(config, "heads"))),
        shards_(shards_of_layers(config)),
        // Each block adds to the residual stream twice; this keeps its variance from growing with the depth.
        projection_(deviation / std::sqrt(2.0 * option(config, "layers"))) {}

  [[nodiscard]] Unit embedding() const {
    LayerSpec tokens = {"embedding",
                        "transformer",
                        rows_,
                        1,
                        {{"vocabulary", option(config_, "vocabulary")},
                         {"context", option(config_, "context")},
                         {"outputs", static_cast<double>(hidden_)},
                         {"deviation", deviation}}};
    const bool in_shards = config_.vocabulary.shards > 1;
    if (!is_tied() && !in_shards) return {"embedding", {layer(tokens)}};
    // The head shares the tokens' table, or shards have parts of it. So the positions are a layer of their
    // own.
    tokens.name = "transformer.wte";
    tokens.options.erase("context");
    const LayerSpec positions = {"positions",
                                 "transformer.wpe",
                                 rows_,
                                 hidden_,
                                 {{"context", option(config_, "context")}, {"deviation", deviation}}};
    if (in_shards) return embedding_in_shards(config_, tokens, {layer(positions)});
    return {"embedding", {shared_by_head(layer(tokens)), layer(positions)}};
  }

  [[nodiscard]] Unit block(int number) const {
    const std::string name = fmt::format("transformer.h.{}", number);
    const std::size_t shards = shards_[index(number)];
    const std::size_t heads = heads_ / shards;
    const Half attention = {
        .norm = name + ".ln_1",
        .first = name + ".attn.c_attn",
        .between = {"attention",
                    name + ".attn",
                    rows_,
                    3 * hidden_ / shards,
                    {{"heads", static_cast<double>(heads)}, {"context", option(config_, "context")}}},
        .second = name + ".attn.c_proj",
        .columns = 3 * hidden_,
        .matrices = 3,
        .inner = hidden_};
    const Half mlp = {.norm = name + ".ln_2",
                      .first = name + ".mlp.c_fc",
                      .between = {"gelu", name + ".mlp.act", rows_, 4 * hidden_ / shards, {}},
                      .second = name + ".mlp.c_proj",
                      .columns = 4 * hidden_,
                      .matrices = 1,
                      .inner = 4 * hidden_};
    Unit unit = {fmt::format("block {}", number), {}};
    for (const Half& half : {attention, mlp})
      add_half(unit, shards, [&](const Shard& shard) { return shard_of(half, shard); });
    return unit;
  }

  [[nodiscard]] Unit head() const {
    const LayerSpec spec = {
        "linear",
        "lm_head",
        rows_,
        hidden_,
        {{"outputs", option(config_, "vocabulary")}, {"bias", 0}, {"deviation", deviation}}};
    if (config_.vocabulary.shards > 1) return head_in_shards(config_, norm("transformer.ln_f"), spec);
    StageOp output = layer(spec);
    if (is_tied()) output = shared_by_head(std::move(output));
    return {"head", {norm("transformer.ln_f"), std::move(output)}};
  }

 private:
  /// A half of a block: a normalisation, two linear layers, and the layer between them.
  struct Half {
    std::string norm;
    std::string first;
    LayerSpec between;  ///< of one shard
    std::string second;
    std::size_t columns;   ///< outputs of the first linear layer, of all shards together
    std::size_t matrices;  ///< of the same size that make up its weight: queries, keys and values are three
    std::size_t inner;     ///< inputs of the second one, of all shards together
  };

  [[nodiscard]] bool is_tied() const { return option<bool>(config_, tied_key); }
  [[nodiscard]] StageOp layer(const LayerSpec& spec) const { return layer_op(spec, config_.precision); }
  [[nodiscard]] StageOp norm(const std::string& name) const {
    return layer({"layernorm", name, rows_, hidden_, {}});
  }
  [[nodiscard]] StageOp linear(const std::string& name, std::size_t inputs, std::size_t outputs,
                               double spread, bool bias, const Shard& shard,
                               std::vector<Piece> pieces) const {
    return with_pieces(layer({"linear",
                              name,
                              rows_,
                              inputs,
                              {{"outputs", static_cast<double>(outputs)},
                               {"conv1d", 1},
                               {"bias", bias ? 1 : 0},
                               {"deviation", spread}}}),
                       shard, std::move(pieces));
  }

  /// A shard as Megatron-LM cuts it (arXiv 1909.08053, section 3): it has heads, or columns of the first
  /// matrix of the MLP and rows of the second. The outputs of the shards add up to the output of the half.
  /// Shard 0 has the second bias; the shards share the normalisation's parameters.
  [[nodiscard]] std::vector<StageOp> shard_of(const Half& half, const Shard& shard) const {
    const auto [k, shards] = shard;
    StageOp normed = norm(half.norm);
    if (shards > 1) normed.shared = half.norm;
    std::vector<Piece> of_second = {rows_piece(half.inner, hidden_, k, shards)};
    if (k == 0) of_second.emplace_back();  // the bias is whole
    return {
        std::move(normed),
        linear(half.first, hidden_, half.columns / shards, deviation, true, shard,
               {columns_piece(hidden_, half.columns, k, shards, half.matrices),
                vector_piece(half.columns, k, shards, half.matrices)}),
        layer(half.between),
        linear(half.second, half.inner / shards, hidden_, projection_, k == 0, shard, std::move(of_second))};
  }

  const ModelConfig& config_;
  std::size_t rows_;
  std::size_t hidden_;
  std::size_t heads_;
  std::vector<std::size_t> shards_;  ///< of each block
  double projection_;  ///< deviation of the start values of matrices whose output joins the residual stream
};

/// GPT-2, whose head may be tied; parameters have the names and start values of Hugging Face's
/// GPT2LMHeadModel.
UnitGraph gpt_units(const ModelConfig& config, std::size_t microbatch_size) {
  const int width = option(config, "hidden");
  const int heads = option(config, "heads");
  if (width % heads != 0)
    throw InputError(fmt::format("model.heads: {} does not divide model.hidden, {}", heads, width));
  require_sums_of_shards(config);
  require_shards_divide(config, "heads", heads);
  const std::size_t rows = microbatch_size * index(option(config, "context"));
  return language_model(config, rows, Layers(config, rows));
}

const bool registered = register_network(with_saved_names(
    {.name = "gpt",
     .meaning = "GPT-2.",
     .data = {std::string(text_data), std::string(tokens_data)},
     .keys = {{"layers", 4, "Number of transformer blocks.", from_1_to(1 << 16)},
              {"hidden", 128, "Columns of the hidden activations.", from_1_to(1 << 18)},
              {"heads", 4, "Attention heads of a block; they divide `hidden`.", from_1_to(1 << 18)},
              {"context", 128, "Tokens of a sequence.", from_1_to(1 << 20)},
              {"vocabulary", byte_values,
               "Number of tokens: ids are 0 to `vocabulary` - 1. At least 256 with `data.kind: text`.",
               from_1_to(1 << 24)},
              tied_head_key(),
              tensor_key_of_blocks(),
              sums_network_key()},
     .units = gpt_units},
    // Old versions of transformers saved causal masks among the weights.
    {.prefix = "transformer.",
     .embedding = "transformer.wte.weight",
     .not_weights = {".attn.bias", ".attn.masked_bias"}}));

}  // namespace
}  // namespace starpipe::model
