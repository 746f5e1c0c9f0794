// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/networks/saved_names.hpp"
#include "model/networks/shards.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network_registry.hpp"

namespace starpipe::model {
namespace {

constexpr double deviation = 0.02;  // of Llama's start values

struct Heads {
  std::size_t queries;
  std::size_t keys;  ///< also of values
  std::size_t size;  ///< columns of a head
};

Heads heads_of(const ModelConfig& config) {
  const int width = option(config, "hidden");
  const int heads = option(config, "heads");
  const int given = option(config, "kv_heads");
  const int kv_heads = given == 0 ? heads : given;
  if (width % heads != 0) {
    throw InputError(fmt::format("model.heads: {} does not divide model.hidden, {}", heads, width));
  }
  if (width / heads % 2 != 0) {
    throw InputError(
        fmt::format("model.heads: {} heads of model.hidden, {}, have {} columns each; rotary positions need "
                    "an even number",
                    heads, width, width / heads));
  }
  if (heads % kv_heads != 0) {
    throw InputError(fmt::format("model.kv_heads: {} does not divide model.heads, {}", kv_heads, heads));
  }
  require_sums_of_shards(config);
  require_shards_divide(config, "heads", heads);
  require_shards_divide(config, "kv_heads", kv_heads);
  require_shards_divide(config, "intermediate", option(config, "intermediate"));
  return {index(heads), index(kv_heads), index(width / heads)};
}

/// Makes the layers of a Llama (Touvron et al., arXiv 2302.13971) for micro-batches of `rows` tokens.
class Layers {
 public:
  Layers(const ModelConfig& config, std::size_t rows)
      : config_(config),
        rows_(rows),
        vocabulary_(index(option(config, "vocabulary"))),
        hidden_(index(option(config, "hidden"))),
        heads_(heads_of(config)),
        shards_(shards_of_layers(config)) {}

  [[nodiscard]] Unit embedding() const {
    const LayerSpec table = {"embedding",
                             "model.embed_tokens",
                             rows_,
                             1,
                             {{"vocabulary", static_cast<double>(vocabulary_)},
                              {"outputs", static_cast<double>(hidden_)},
                              {"deviation", deviation}}};
    if (config_.vocabulary.shards > 1) return embedding_in_shards(config_, table);
    return {"embedding", {tied_if_asked(table)}};
  }
  [[nodiscard]] StageOp norm(const std::string& name) const {
    return layer({"rmsnorm", name, rows_, hidden_, {{"epsilon", option<double>(config_, "epsilon")}}});
  }
  [[nodiscard]] Unit block(int number) const {
    const std::string name = fmt::format("model.layers.{}", number);
    Unit unit = {fmt::format("block {}", number), {}};
    const std::size_t shards = shards_[index(number)];
    add_half(unit, shards, [&](const Shard& shard) { return attention_shard(name, shard); });
    add_half(unit, shards, [&](const Shard& shard) { return mlp_shard(name, shard); });
    return unit;
  }

  [[nodiscard]] Unit head() const {
    const LayerSpec output = linear_spec("lm_head", hidden_, vocabulary_);
    if (config_.vocabulary.shards > 1) return head_in_shards(config_, norm("model.norm"), output);
    return {"head", {norm("model.norm"), tied_if_asked(output)}};
  }

 private:
  /// A tensor of the saved file that is a part of a linear layer's weight: its name after the layer's, and
  /// its outputs, of all shards together.
  using Part = std::pair<std::string, std::size_t>;

  // Shards are cut as in gpt.cpp. A shard of the attention has query heads, and the heads of keys and values
  // that belong to them.
  [[nodiscard]] std::vector<StageOp> attention_shard(const std::string& block, const Shard& shard) const {
    const Heads own = {heads_.queries / shard.of, heads_.keys / shard.of, heads_.size};
    const std::size_t columns = (own.queries + 2 * own.keys) * own.size;  // of q, k and v
    const std::size_t of_keys = heads_.keys * heads_.size;
    const auto context = static_cast<double>(option(config_, "context"));
    const std::string name = block + ".self_attn";
    return {shared_norm(block + ".input_layernorm", shard),
            first_linear(name, {{"q_proj", hidden_}, {"k_proj", of_keys}, {"v_proj", of_keys}}, shard),
            layer({"rotary",
                   name,
                   rows_,
                   columns,
                   {{"heads", static_cast<double>(own.queries + own.keys)},
                    {"size", static_cast<double>(own.size)},
                    {"context", context},
                    {"theta", option<double>(config_, "rope_theta")}}}),
            layer({"attention",
                   name,
                   rows_,
                   columns,
                   {{"heads", static_cast<double>(own.queries)},
                    {"kv_heads", static_cast<double>(own.keys)},
                    {"context", context}}}),
            second_linear(name + ".o_proj", hidden_, shard)};
  }
  [[nodiscard]] std::vector<StageOp> mlp_shard(const std::string& block, const Shard& shard) const {
    const std::size_t inner = index(option(config_, "intermediate"));
    const std::string name = block + ".mlp";
    return {shared_norm(block + ".post_attention_layernorm", shard),
            first_linear(name, {{"gate_proj", inner}, {"up_proj", inner}}, shard),
            layer({"swiglu", name, rows_, 2 * inner / shard.of, {}}),
            second_linear(name + ".down_proj", inner, shard)};
  }

  /// A normalisation whose parameters all shards share.
  [[nodiscard]] StageOp shared_norm(const std::string& name, const Shard& shard) const {
    StageOp op = norm(name);
    if (shard.of > 1) op.shared = name;
    return op;
  }
  /// The first linear layer of a half: shard k has rows of each part, since the weights are [outputs,
  /// inputs].
  [[nodiscard]] StageOp first_linear(const std::string& name, std::vector<Part> parts,
                                     const Shard& shard) const {
    std::vector<Piece> pieces;
    std::size_t outputs = 0;
    for (auto& [part, rows] : parts) {
      pieces.push_back(rows_piece(rows, hidden_, shard.k, shard.of));
      rows /= shard.of;
      outputs += rows;
    }
    LayerSpec spec = linear_spec(name, hidden_, outputs);
    spec.parts = std::move(parts);
    return with_pieces(layer(spec), shard, std::move(pieces));
  }
  /// The second one, with `inputs` of all shards together: shard k has columns.
  [[nodiscard]] StageOp second_linear(const std::string& name, std::size_t inputs, const Shard& shard) const {
    return with_pieces(layer(linear_spec(name, inputs / shard.of, hidden_)), shard,
                       {columns_piece(hidden_, inputs, shard.k, shard.of)});
  }
  [[nodiscard]] StageOp layer(const LayerSpec& spec) const { return layer_op(spec, config_.precision); }
  [[nodiscard]] LayerSpec linear_spec(const std::string& name, std::size_t inputs,
                                      std::size_t outputs) const {
    return {"linear",
            name,
            rows_,
            inputs,
            {{"outputs", static_cast<double>(outputs)}, {"bias", 0}, {"deviation", deviation}}};
  }
  /// The embedding, or the head. Both have a table with a row for each token.
  [[nodiscard]] StageOp tied_if_asked(const LayerSpec& spec) const {
    return option<bool>(config_, tied_key) ? shared_by_head(layer(spec)) : layer(spec);
  }

  const ModelConfig& config_;
  std::size_t rows_;
  std::size_t vocabulary_;
  std::size_t hidden_;
  Heads heads_;
  std::vector<std::size_t> shards_;  ///< of each block
};

/// Parameters have the names, shapes and start values of Hugging Face's LlamaForCausalLM.
UnitGraph units(const ModelConfig& config, std::size_t microbatch_size) {
  const std::size_t rows = microbatch_size * index(option(config, "context"));
  return language_model(config, rows, Layers(config, rows));
}

const bool registered = register_network(with_saved_names(
    {.name = "llama",
     .meaning = "Llama.",
     .data = {std::string(text_data), std::string(tokens_data)},
     .keys =
         {{"layers", 4, "Number of transformer blocks.", from_1_to(1 << 16)},
          {"hidden", 128, "Columns of the hidden activations.", from_1_to(1 << 18)},
          {"heads", 4, "Attention heads of a block; they divide `hidden`.", from_1_to(1 << 18)},
          {"kv_heads",
           0,
           "Heads of keys and values, each for `heads` / `kv_heads` attention heads. 0: as many as `heads`.",
           {.min = 0, .max = 1 << 18}},
          {"intermediate", 344, "Columns between the linear layers of a block's SwiGLU.", from_1_to(1 << 20)},
          {"context", 128, "Tokens of a sequence.", from_1_to(1 << 20)},
          {"vocabulary", byte_values,
           "Number of tokens: ids are 0 to `vocabulary` - 1. At least 256 with `data.kind: text`.",
           from_1_to(1 << 24)},
          {.name = "rope_theta",
           .default_value = 10000.0,
           .meaning = "The base of the angles of rotary positions.",
           .interval = positive,
           .values_only = true},
          {.name = "epsilon",
           .default_value = 1e-6,
           .meaning = "Added to the mean square in RMSNorm.",
           .interval = positive,
           .values_only = true},
          tied_head_key(),
          tensor_key_of_blocks(),
          sums_network_key()},
     .units = units},
    // Old versions of transformers saved the frequencies of rotary positions among the weights.
    {.prefix = "model.", .embedding = "model.embed_tokens.weight", .not_weights = {".rotary_emb.inv_freq"}}));

}  // namespace
}  // namespace starpipe::model
