// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace starpipe::model {

/// One fp32 tensor, row-major.
struct Tensor {
  std::vector<std::size_t> shape;
  std::vector<float> values;
};

/// Writes a file in the safetensors format: an 8-byte little-endian header length, a JSON header padded with
/// spaces to a multiple of 8 bytes, and the tensors' data, sorted by name. Writes to a temporary name beside
/// `file` and renames it. Throws InputError with the file when it cannot be written.
void write_safetensors(const std::filesystem::path& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

/// Reads the tensors of a file, by name, and its metadata unless `metadata` is null. `wanted` says by its
/// name whether a tensor is read; empty: all are. The types F32, F16 and BF16 become fp32, with the same
/// values. Throws InputError with the file (and the tensor) when the file is missing, malformed or truncated,
/// when offsets overlap, leave gaps or leave the file, and when a tensor that is read has another type.
std::map<std::string, Tensor> read_safetensors(
    const std::filesystem::path& file, std::map<std::string, std::string>* metadata = nullptr,
    const std::function<bool(const std::string& name)>& wanted = {});

}  // namespace starpipe::model
