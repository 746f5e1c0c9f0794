// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace starpipe::model {

/// Whether the file is an index of several safetensors files, by its name: it ends in ".json".
bool is_safetensors_index(const std::filesystem::path& file);

/// Reads the index of weights in several files, as Hugging Face publishes large models
/// (`model.safetensors.index.json`). Returns the path of each file and the names of its tensors. Throws
/// InputError with the index when it is missing or malformed, or names a file in another folder.
std::map<std::filesystem::path, std::set<std::string>> read_safetensors_index(
    const std::filesystem::path& index);

}  // namespace starpipe::model
