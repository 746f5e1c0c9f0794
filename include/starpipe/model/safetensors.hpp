// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace starpipe::model {

/// One fp32 tensor, row-major.
struct Tensor {
  std::vector<std::size_t> shape;
  std::vector<float> values;
};

/// Writes the safetensors format (8-byte little-endian header length, JSON header, data; tensors sorted by
/// name, header padded with spaces to 8 bytes). To a temporary name beside `file`, then renamed. Throws
/// InputError naming the file when it cannot be written.
void write_safetensors(const std::filesystem::path& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

/// Throws InputError naming the file (and the tensor) when it is missing, malformed, truncated, has offsets
/// that overlap, leave the file or leave gaps, or holds a type other than F32.
/// When `metadata` is given it gets the file's.
std::map<std::string, Tensor> read_safetensors(const std::filesystem::path& file,
                                               std::map<std::string, std::string>* metadata = nullptr);

}  // namespace starpipe::model
