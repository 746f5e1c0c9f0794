// SPDX-License-Identifier: Apache-2.0
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/networks/language_model.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::model {
namespace {

constexpr double llama_deviation = 0.02;  // of Llama's start values

/// Llama (Touvron et al., arXiv 2302.13971). Parameters have the names, shapes and start values of Hugging
/// Face's LlamaForCausalLM.
class Llama final : public LanguageModel {
 public:
  Llama(const ModelConfig& config, std::size_t microbatch_size)
      : LanguageModel(config, microbatch_size), size_(hidden_ / heads_) {
    const int given = option(config, "kv_heads");
    kv_heads_ = given == 0 ? heads_ : index(given);
    if (size_ % 2 != 0) {
      throw InputError(fmt::format(
          "model.heads: {} heads of model.hidden, {}, have {} columns each; rotary positions need "
          "an even number",
          heads_, hidden_, size_));
    }
    if (heads_ % kv_heads_ != 0)
      throw InputError(fmt::format("model.kv_heads: {} does not divide model.heads, {}", kv_heads_, heads_));
    require_shards();
    require_shards_divide(config, "kv_heads", static_cast<int>(kv_heads_));
    require_shards_divide(config, "intermediate", option(config, "intermediate"));
  }

 private:
  [[nodiscard]] Unit embedding() const override {
    return embedding_of(spec("embedding", "model.embed_tokens", 1,
                             {{"vocabulary", option(config_, "vocabulary")},
                              {"outputs", option(config_, "hidden")},
                              {"deviation", llama_deviation}}));
  }
  [[nodiscard]] StageOp norm(const std::string& name) const override {
    return layer(spec("rmsnorm", name, hidden_, {{"epsilon", option<double>(config_, "epsilon")}}));
  }
  [[nodiscard]] std::vector<std::vector<StageOp>> halves(int block, const Shard& shard) const override {
    const std::string name = fmt::format("model.layers.{}", block);
    return {attention_shard(name, shard), mlp_shard(name, shard)};
  }
  [[nodiscard]] Unit head() const override {
    return head_of("model.norm", linear_spec("lm_head", hidden_, index(option(config_, "vocabulary"))));
  }

  /// A tensor of the saved file that is a part of a linear layer's weight: its name after the layer's, and
  /// its outputs, of all shards together.
  using Part = std::pair<std::string, std::size_t>;

  // Shards are cut as in gpt.cpp. A shard of the attention has query heads, and the heads of keys and values
  // that belong to them.
  [[nodiscard]] std::vector<StageOp> attention_shard(const std::string& block, const Shard& shard) const {
    const std::size_t queries = heads_ / shard.of;  // heads, as `keys`
    const std::size_t keys = kv_heads_ / shard.of;
    const std::size_t columns = (queries + 2 * keys) * size_;  // of q, k and v
    const std::size_t of_keys = kv_heads_ * size_;
    const std::string name = block + ".self_attn";
    return {shared_norm(block + ".input_layernorm", shard),
            first_linear(name, {{"q_proj", hidden_}, {"k_proj", of_keys}, {"v_proj", of_keys}}, shard),
            layer(positioned_spec("rotary", name, columns,
                                  {{"heads", static_cast<double>(queries + keys)},
                                   {"size", static_cast<double>(size_)},
                                   {"theta", option<double>(config_, "rope_theta")}})),
            layer(positioned_spec(
                "attention", name, columns,
                {{"heads", static_cast<double>(queries)}, {"kv_heads", static_cast<double>(keys)}})),
            second_linear(name + ".o_proj", hidden_, shard)};
  }
  [[nodiscard]] std::vector<StageOp> mlp_shard(const std::string& block, const Shard& shard) const {
    const std::size_t inner = index(option(config_, "intermediate"));
    const std::string name = block + ".mlp";
    return {shared_norm(block + ".post_attention_layernorm", shard),
            first_linear(name, {{"gate_proj", inner}, {"up_proj", inner}}, shard),
            layer(spec("swiglu", name, 2 * inner / shard.of)),
            second_linear(name + ".down_proj", inner, shard)};
  }

  /// Returns the first linear layer of a half: shard k has rows of each part, since the weights are [outputs,
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
    LayerSpec joined = linear_spec(name, hidden_, outputs);
    joined.parts = std::move(parts);
    return with_pieces(layer(joined), shard, std::move(pieces));
  }
  /// Returns the second linear layer, with `inputs` of all shards together: shard k has columns.
  [[nodiscard]] StageOp second_linear(const std::string& name, std::size_t inputs, const Shard& shard) const {
    return with_pieces(layer(linear_spec(name, inputs / shard.of, hidden_)), shard,
                       {columns_piece(hidden_, inputs, shard.k, shard.of)});
  }
  [[nodiscard]] LayerSpec linear_spec(const std::string& name, std::size_t inputs,
                                      std::size_t outputs) const {
    return spec("linear", name, inputs,
                {{"outputs", static_cast<double>(outputs)}, {"bias", 0}, {"deviation", llama_deviation}});
  }

  std::size_t size_;      ///< columns of a head
  std::size_t kv_heads_;  ///< heads of keys, and of values
};

const bool registered_llama = register_language_model<Llama>(
    "llama", "Llama.",
    {{"kv_heads",
      0,
      "Heads of keys and values, each for `heads` / `kv_heads` attention heads. 0: as many as `heads`.",
      {.min = 0, .max = 1 << 18}},
     {"intermediate", 344, "Columns between the linear layers of a block's SwiGLU.", from_1_to(1 << 20)}},
    {{.name = "rope_theta",
      .default_value = 10000.0,
      .meaning = "The base of the angles of rotary positions.",
      .interval = positive,
      .values_only = true},
     {.name = "epsilon",
      .default_value = 1e-6,
      .meaning = "Added to the mean square in RMSNorm.",
      .interval = positive,
      .values_only = true}},
    // Old versions of transformers saved the frequencies of rotary positions among the weights.
    {.prefix = "model.",
     .embedding = "model.embed_tokens.weight",
     .positions = "",
     .not_weights = {".rotary_emb.inv_freq"}});

}  // namespace
}  // namespace starpipe::model
