// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "model/safetensors.hpp"

namespace starpipe::model {

/// Adds rows to a table [n, columns], one row a token, until it has `rows`. Each new row is the mean of the n
/// rows, so an output projection with this table gives a new token the mean of the other logits. This raises
/// the cross-entropy of other tokens by log(rows / n) at most (J. Hewitt, "Initializing New Word Embeddings
/// for Pretrained Language Models", 2021). Rows of zeros would not do: GPT-2's logits are far below 0, so
/// such tokens would be the likeliest of all. Leaves a tensor of another rank, or with as many rows, as it
/// is.
void pad_rows(Tensor& table, std::size_t rows);

}  // namespace starpipe::model
