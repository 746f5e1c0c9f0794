// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/networks/language_model.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

constexpr double gpt_deviation = 0.02;  // of GPT-2's start values

/// GPT-2, whose head may be tied. Parameters have the names and start values of Hugging Face's
/// GPT2LMHeadModel.
class Gpt final : public LanguageModel {
 public:
  Gpt(const ModelConfig& config, std::size_t microbatch_size)
      : LanguageModel(config, microbatch_size),
        // Each block adds to the residual stream twice. So the stream's variance does not grow with the
        // depth.
        projection_(gpt_deviation / std::sqrt(2.0 * option(config, "layers"))) {
    require_shards();
  }

 private:
  [[nodiscard]] Unit embedding() const override {
    const std::map<std::string, double> table = {{"vocabulary", option(config_, "vocabulary")},
                                                 {"outputs", option(config_, "hidden")},
                                                 {"deviation", gpt_deviation}};
    if (!is_tied() && !has_vocabulary_shards())
      return {"embedding", {layer(positioned_spec("embedding", "transformer", 1, table))}};
    // The head shares the tokens' table, or shards have parts of it. So the positions need their own layer.
    return embedding_of(
        spec("embedding", "transformer.wte", 1, table),
        {layer(positioned_spec("positions", "transformer.wpe", hidden_, {{"deviation", gpt_deviation}}))});
  }
  [[nodiscard]] StageOp norm(const std::string& name) const override {
    return layer(spec("layernorm", name, hidden_));
  }
  [[nodiscard]] std::vector<std::vector<StageOp>> halves(int block, const Shard& shard) const override {
    const std::string name = fmt::format("transformer.h.{}", block);
    const std::size_t heads = heads_ / shard.of;
    const LayerSpec attention = positioned_spec("attention", name + ".attn", 3 * hidden_ / shard.of,
                                                {{"heads", static_cast<double>(heads)}});
    const LayerSpec gelu = spec("gelu", name + ".mlp.act", 4 * hidden_ / shard.of);
    return {
        half({name + ".ln_1", name + ".attn.c_attn", attention, name + ".attn.c_proj", 3, hidden_}, shard),
        half({name + ".ln_2", name + ".mlp.c_fc", gelu, name + ".mlp.c_proj", 1, 4 * hidden_}, shard)};
  }
  [[nodiscard]] Unit head() const override {
    return head_of(
        "transformer.ln_f",
        spec("linear", "lm_head", hidden_,
             {{"outputs", option(config_, "vocabulary")}, {"bias", 0}, {"deviation", gpt_deviation}}));
  }

  /// A half of a block: a normalisation, two linear layers, and the layer between them.
  struct Half {
    std::string norm;
    std::string first;
    LayerSpec between;  ///< of one shard
    std::string second;
    /// Number of equal matrices in the first weight: 3 for queries, keys and values.
    std::size_t matrices;
    /// Outputs of each of these matrices, and inputs of the second linear layer; of all shards together.
    std::size_t inner;
  };

  /// Returns the ops of a shard as Megatron-LM cuts it (arXiv 1909.08053, section 3): it has some of the
  /// heads, or some columns of the MLP's first matrix and the same rows of the second. Shard 0 has the second
  /// bias. The shards share the normalisation's parameters.
  [[nodiscard]] std::vector<StageOp> half(const Half& of, const Shard& shard) const {
    const auto [k, shards] = shard;
    const std::size_t columns = of.matrices * of.inner;
    std::vector<Piece> of_second = {rows_piece(of.inner, hidden_, k, shards)};
    if (k == 0) of_second.emplace_back();  // the bias is whole
    return {shared_norm(of.norm, shard),
            linear(of.first, hidden_, columns / shards, gpt_deviation, true, shard,
                   {columns_piece(hidden_, columns, k, shards, of.matrices),
                    vector_piece(columns, k, shards, of.matrices)}),
            layer(of.between),
            linear(of.second, of.inner / shards, hidden_, projection_, k == 0, shard, std::move(of_second))};
  }
  [[nodiscard]] StageOp linear(const std::string& name, std::size_t inputs, std::size_t outputs,
                               double spread, bool bias, const Shard& shard,
                               std::vector<Piece> pieces) const {
    const LayerSpec of = spec("linear", name, inputs,
                              {{"outputs", static_cast<double>(outputs)},
                               {"conv1d", 1},
                               {"bias", bias ? 1 : 0},
                               {"deviation", spread}});
    return with_pieces(layer(of), shard, std::move(pieces));
  }

  double projection_;  ///< deviation of the start values of matrices whose output joins the residual stream
};

const bool registered_gpt =
    register_language_model<Gpt>("gpt", "GPT-2.", {}, {},
                                 // Old versions of transformers saved causal masks among the weights.
                                 {.prefix = "transformer.",
                                  .embedding = "transformer.wte.weight",
                                  .positions = "transformer.wpe.weight",
                                  .not_weights = {".attn.bias", ".attn.masked_bias"}});

}  // namespace
}  // namespace starpipe::model
