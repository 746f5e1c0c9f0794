// SPDX-License-Identifier: Apache-2.0
// The parts that language models share: keys, blocks of two halves, embedding and head (tied, or in shards),
// and the names of published weights.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/arithmetic.hpp"
#include "model/networks/shards.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {

/// Makes the units of a language model: embedding, blocks and head, and the cross entropy.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  [[nodiscard]] UnitGraph units() const;

 protected:
  /// Throws InputError unless heads divide `hidden`.
  LanguageModel(const ModelConfig& config, std::size_t microbatch_size);
  /// Throws InputError if `model.sums` needs shards and there are none, or if the shards do not divide
  /// the heads.
  void require_shards() const;

  [[nodiscard]] virtual Unit embedding() const = 0;
  [[nodiscard]] virtual StageOp norm(const std::string& name) const = 0;
  /// Returns the ops of one shard, [half of the block], without the residual connections around the halves.
  /// The outputs of all shards add up to the output of the half.
  [[nodiscard]] virtual std::vector<std::vector<StageOp>> halves(int block, const Shard& shard) const = 0;
  [[nodiscard]] virtual Unit head() const = 0;

  /// Describes a layer of the micro-batch's rows.
  [[nodiscard]] LayerSpec spec(std::string kind, std::string name, std::size_t columns,
                               std::map<std::string, double> options = {}) const {
    return {std::move(kind), std::move(name), rows_, columns, std::move(options)};
  }
  /// Describes a layer that knows the positions of its rows: of whole sequences, or of a slice of them.
  [[nodiscard]] LayerSpec positioned_spec(std::string kind, std::string name, std::size_t columns,
                                          std::map<std::string, double> options) const {
    options["context"] = option(config_, "context");
    if (config_.slice) {
      options["first_position"] = static_cast<double>(part_.first);
      options["positions"] = static_cast<double>(part_.count);
    }
    return spec(std::move(kind), std::move(name), columns, std::move(options));
  }
  [[nodiscard]] StageOp layer(const LayerSpec& of) const { return layer_op(of, config_.precision); }
  /// Returns a normalisation whose parameters all shards share.
  [[nodiscard]] StageOp shared_norm(const std::string& name, const Shard& shard) const;

  [[nodiscard]] bool is_tied() const;
  [[nodiscard]] bool has_vocabulary_shards() const { return config_.vocabulary.shards > 1; }
  /// Returns the embedding with the table `table`, which has no positions. `after`: ops that follow it, such
  /// as positions. With shards of the vocabulary (arXiv 2411.05288) each shard has the table's rows of its
  /// tokens, and shard 0 has `after`; the outputs add up.
  [[nodiscard]] Unit embedding_of(const LayerSpec& table, const std::vector<StageOp>& after = {}) const;
  /// Returns the head: a normalisation, and the linear layer that computes the logits. With shards of the
  /// vocabulary the normalisation is whole. Each shard computes the logits of its tokens, and from them two
  /// numbers per row, from which the loss is computed.
  [[nodiscard]] Unit head_of(const std::string& norm_name, const LayerSpec& output) const;

  ModelConfig config_;
  Piece::Range part_;  ///< tokens of each sequence
  std::size_t rows_;   ///< tokens of a micro-batch
  std::size_t hidden_;
  std::size_t heads_;

 private:
  [[nodiscard]] Unit block(int number, std::size_t shards) const;
  [[nodiscard]] StageOp tied_if_asked(const LayerSpec& of) const;
  [[nodiscard]] std::vector<TokenRange> vocabulary_shards() const;
  [[nodiscard]] StageOp shard_of(const LayerSpec& of, std::size_t shard) const;
};

/// Maps the parameters of a language model to their names in Hugging Face's files. The head is
/// "lm_head.weight".
struct SavedNames {
  std::string prefix;                    ///< of all parameters except the head's; files without head lack it
  std::string embedding;                 ///< the weights of the token embedding, with the prefix
  std::string positions;                 ///< a table with a row for each position; empty: there is none
  std::vector<std::string> not_weights;  ///< ends of the names of tensors of old files that are not weights
};

/// Returns a kind of language model. `units`: makes the units, by a class derived from LanguageModel. `sizes`
/// and `values`: its keys in addition to the keys of all language models.
///
/// It reads files with names as in SavedNames: it adds a missing prefix and skips tensors that are not
/// weights. In a file without lm_head.weight the head is tied to the embedding: a model that is not tied
/// starts with a copy of the embedding as head. A tied model also reads a file whose lm_head.weight equals
/// the embedding; another lm_head.weight is refused. Tables of fewer tokens than `model.vocabulary` get more
/// rows. A table of more positions than `model.context` loses the last ones.
NetworkKind language_model_kind(std::string name, std::string meaning, std::vector<NetworkKey> sizes,
                                std::vector<NetworkKey> values, decltype(NetworkKind::units) units,
                                const SavedNames& saved);

/// Registers such a kind, whose units are Model(config, microbatch_size).units().
template <class Model>
bool register_language_model(std::string name, std::string meaning, std::vector<NetworkKey> sizes,
                             std::vector<NetworkKey> values, const SavedNames& saved) {
  return register_network(language_model_kind(
      std::move(name), std::move(meaning), std::move(sizes), std::move(values),
      [](const ModelConfig& config, std::size_t microbatch_size) {
        return Model(config, microbatch_size).units();
      },
      saved));
}

}  // namespace starpipe::model
