// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "model/data/make_dataset.hpp"

namespace starpipe::model {

/// Sequences of `context` tokens of a file; the target of a token is the next one. Throws InputError with the
/// file when it has fewer than context + 1 tokens. TokenFile says when reading fails.
std::unique_ptr<Dataset> make_sequence_dataset(const DataConfig& data, std::size_t vocabulary,
                                               std::size_t context, BatchSize batch, std::uint64_t seed);

}  // namespace starpipe::model
