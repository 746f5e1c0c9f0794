// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

namespace starpipe::model {

/// Whether the file is an index of several safetensors files, by its name: it ends in ".json".
bool is_safetensors_index(const std::filesystem::path& file);

/// Reads an index such as `model.safetensors.index.json`, with which Hugging Face publishes weights that are
/// several files. Returns the paths of these files, and the names of the tensors that each must have. Throws
/// InputError with the index when it is missing or malformed, or names a file in another folder.
std::map<std::filesystem::path, std::set<std::string>> read_safetensors_index(
    const std::filesystem::path& index);

}  // namespace starpipe::model
