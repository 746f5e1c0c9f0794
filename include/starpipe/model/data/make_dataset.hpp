// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// `data:` of the configuration.
struct DataConfig {
  std::string kind = std::string(text_data);  ///< the one of data_kinds that the network reads
  std::filesystem::path path;                 ///< of text
};

/// Throws InputError with the key or file, for a kind that does not fit the model, and for a file that is
/// missing, unreadable or shorter than context + 1 bytes.
std::unique_ptr<Dataset> make_dataset(const DataConfig& data, const ModelConfig& model, int microbatch_size,
                                      std::uint64_t seed);

}  // namespace starpipe::model
