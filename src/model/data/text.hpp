// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "starpipe/model/dataset.hpp"

namespace starpipe::model {

/// Sequences of `context` tokens at random offsets of a file; each byte is a token and the next one its
/// target. Throws InputError with the file when it cannot be read, or is shorter than context + 1 bytes.
std::unique_ptr<Dataset> make_text_dataset(const std::filesystem::path& path, std::size_t context,
                                           int sequences, std::uint64_t seed);

}  // namespace starpipe::model
