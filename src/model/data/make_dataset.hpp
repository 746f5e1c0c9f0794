// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// The size of a step: `microbatches` times `microbatch_size` sequences or samples.
struct BatchSize {
  int microbatches = 1;
  int microbatch_size = 1;
};

/// Opens the data. Of a file of tokens only some places are read here (TokenFile); the rest is read and
/// checked when a micro-batch needs it. Throws InputError with the key or file: for a kind that the network
/// does not read, a vocabulary of fewer than 256 tokens for text, and a file that is missing, unreadable, of
/// no known form, shorter than context + 1 tokens, or with a token outside the vocabulary.
std::unique_ptr<Dataset> make_dataset(const DataConfig& data, const ModelConfig& model, BatchSize batch,
                                      std::uint64_t seed);

/// Returns the data of evaluations. For text and tokens: the sequences of the file `DataConfig::validation`,
/// in the order of the file. For synthetic data: samples of the same task that make_dataset() does not have.
/// An evaluation reads step 0. Throws InputError as make_dataset() does.
std::unique_ptr<Dataset> make_validation(const DataConfig& data, const ModelConfig& model, BatchSize batch,
                                         std::uint64_t seed);

/// Throws InputError, with `model.kind` and both sizes, unless the network's sources and sink read
/// micro-batches of the sizes that data of this kind have: a network of a plug-in may have others.
/// `data_kind`: a kind of data for this network.
void require_data_sizes(const Network& network, std::string_view data_kind);

}  // namespace starpipe::model
