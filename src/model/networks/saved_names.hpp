// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {

inline constexpr const char* tied_key = "tied";
/// The key of a language model whose head may be tied to the embedding.
NetworkKey tied_head_key();
/// The op of the embedding or the head, which share one table.
StageOp shared_by_head(StageOp op);

/// Maps the parameters of a language model to their names in Hugging Face's files. The head is
/// "lm_head.weight".
struct SavedNames {
  std::string prefix;                    ///< of all parameters but the head's; files without a head lack it
  std::string embedding;                 ///< the weights of the token embedding, with the prefix
  std::vector<std::string> not_weights;  ///< ends of the names of tensors of old files that are not weights
};

/// Returns the kind with functions that read such files: they add a missing prefix and skip tensors that are
/// not weights. In a file without lm_head.weight the head is tied to the embedding: a model that is not tied
/// starts with a copy of the embedding as head. A tied model also reads a file whose lm_head.weight equals
/// the embedding; for another lm_head.weight complete_weights throws InputError. Tables of fewer tokens than
/// `model.vocabulary` get more rows (pad_rows).
NetworkKind with_saved_names(NetworkKind kind, const SavedNames& names);

/// Adds rows to a table [n, columns], which has one row per token, until it has `rows`. Each new row is the
/// mean of the n rows, so an output projection with this table gives a new token the mean of the other
/// logits. This raises the cross-entropy of other tokens by at most log(rows / n) (J. Hewitt, "Initializing
/// New Word Embeddings for Pretrained Language Models", 2021). With rows of zeros the new tokens would be the
/// likeliest, since GPT-2's logits are far below 0. Does not change a tensor that has enough rows or another
/// rank.
void pad_rows(Tensor& table, std::size_t rows);

}  // namespace starpipe::model
