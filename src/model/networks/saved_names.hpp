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

/// How Hugging Face's files of a language model differ from its parameters. The head is "lm_head.weight".
struct SavedNames {
  std::string prefix;                    ///< of all parameters but the head's; files without a head lack it
  std::string embedding;                 ///< the weights of the token embedding, with the prefix
  std::vector<std::string> not_weights;  ///< ends of the names of tensors that old files have beside weights
};

/// The kind, which now reads such files: adds the prefix where it lacks, and leaves out what is no weight.
/// In a file without lm_head.weight the head is tied to the embedding: the head of a model that is not tied
/// starts as a copy of it. A tied model reads such a file as it is, and one whose lm_head.weight equals the
/// embedding; for another one complete_weights throws InputError. Tables of fewer
/// tokens than `model.vocabulary` get more rows (pad_rows).
NetworkKind with_saved_names(NetworkKind kind, const SavedNames& names);

/// Adds rows to a table [n, columns], one row a token, until it has `rows`. Each new row is the mean of the n
/// rows, so an output projection with this table gives a new token the mean of the other logits. This raises
/// the cross-entropy of other tokens by log(rows / n) at most (J. Hewitt, "Initializing New Word Embeddings
/// for Pretrained Language Models", 2021). Rows of zeros would not do: GPT-2's logits are far below 0, so
/// such tokens would be the likeliest of all. Leaves a tensor of another rank, or with as many rows, as it
/// is.
void pad_rows(Tensor& table, std::size_t rows);

}  // namespace starpipe::model
