// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/base/error.hpp"

namespace starpipe::model {

/// One fp32 tensor, row-major.
struct Tensor {
  std::vector<std::size_t> shape;
  std::vector<float> values;
};

/// A tensor without its values.
struct TensorShape {
  std::string name;
  std::vector<std::size_t> shape;

  bool operator==(const TensorShape&) const = default;
};

/// Returns the number of elements of a tensor of this shape.
std::size_t count_of(const std::vector<std::size_t>& shape);

/// Returns the error of a tensor of a file: "FILE: tensor NAME: PROBLEM".
InputError bad_tensor(const std::filesystem::path& file, const std::string& name, const std::string& problem);

/// The types of numbers that files are written with.
enum class StoredType : std::uint8_t { fp32, bf16, fp16 };
inline constexpr std::array<std::string_view, 3> stored_type_words = {"fp32", "bf16", "fp16"};

constexpr std::size_t stored_bytes(StoredType type) { return type == StoredType::fp32 ? 4 : 2; }

/// How weights are saved.
struct SaveFormat {
  StoredType type = StoredType::fp32;
  /// Limits the bytes of tensors per file, as Hugging Face's `max_shard_size` does. If all tensors together
  /// have more, they go to several files with an index. A tensor with more has a file of its own.
  std::uint64_t max_shard_size = std::numeric_limits<std::uint64_t>::max();
};

/// Returns the bits of numbers in 16 bits, rounded to the nearest, ties to even. NaN stays NaN, and numbers
/// beyond the type's range become infinity. `type`: not fp32.
std::vector<std::uint16_t> stored_numbers(StoredType type, std::span<const float> values);
/// Returns the first number that is finite and becomes infinity in the type; nullopt if there is none.
std::optional<float> first_overflow(StoredType type, std::span<const float> values);

/// Returns the start of a file in the safetensors format: the length of the header and the header. The
/// tensors' data must follow it without gaps, in the order of `tensors`.
std::string safetensors_start(std::span<const TensorShape> tensors,
                              const std::map<std::string, std::string>& metadata,
                              StoredType type = StoredType::fp32);

/// Writes a file in the safetensors format: an 8-byte little-endian header length, a JSON header padded with
/// spaces to a multiple of 8 bytes, and the tensors' data in fp32, sorted by name. Writes to a temporary name
/// next to `file` and renames it. Throws InputError with the file if it cannot be written.
void write_safetensors(const std::filesystem::path& file, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

struct NumberType;

/// Reads single tensors of a file. The types F32, F16 and BF16 become fp32, with the same values. Not
/// thread-safe.
class SafetensorsReader {
 public:
  /// Reads the header, and the metadata unless `metadata` is null. `tensors` lists the tensors whose names
  /// are `wanted`; without `wanted`, all. Throws InputError with the file (and the tensor) if the file is
  /// missing, malformed or truncated, offsets overlap, leave gaps or leave the file, or a wanted tensor has
  /// another type.
  explicit SafetensorsReader(std::filesystem::path file,
                             std::map<std::string, std::string>* metadata = nullptr,
                             const std::function<bool(const std::string& name)>& wanted = {});

  /// Returns the wanted tensors, in the order of their data in the file.
  [[nodiscard]] const std::vector<TensorShape>& tensors() const { return tensors_; }
  /// Returns the shape of a tensor, owned by the reader; null if the file does not have it.
  [[nodiscard]] const std::vector<std::size_t>* shape(const std::string& name) const;
  /// Reads all values of a tensor, row-major. Throws InputError with file and tensor if it is missing, has
  /// another number of values, or cannot be read.
  void read(const std::string& name, std::span<float> values);
  /// Reads the values from number `first` on. Throws InputError also if the tensor has fewer. Many short
  /// reads of ascending places read each byte of the file once.
  void read(const std::string& name, std::size_t first, std::span<float> values);

 private:
  struct Place {
    std::size_t index = 0;  ///< in tensors_
    const NumberType* type = nullptr;
    std::uint64_t begin = 0;  ///< of its data, in bytes from the start of the file
    std::uint64_t end = 0;

    [[nodiscard]] std::uint64_t count() const;  ///< of its numbers
  };

  [[nodiscard]] const Place& place(const std::string& name) const;

  std::filesystem::path file_;
  std::ifstream in_;          // without a buffer
  std::vector<char> window_;  // bytes of a tensor that short reads take their values from
  std::uint64_t window_begin_ = 0;
  std::vector<TensorShape> tensors_;
  std::map<std::string, Place> places_;
};

/// Reads the wanted tensors of a file, by name; without `with_values` only their shapes. The other parameters
/// and errors are as in SafetensorsReader.
std::map<std::string, Tensor> read_safetensors(
    const std::filesystem::path& file, std::map<std::string, std::string>* metadata = nullptr,
    const std::function<bool(const std::string& name)>& wanted = {}, bool with_values = true);

/// True if the file is an index of several safetensors files: its name ends in ".json".
bool is_safetensors_index(const std::filesystem::path& file);

/// Reads the index of weights in several files, as Hugging Face publishes large models
/// (`model.safetensors.index.json`). Returns the path of each file and the names of its tensors. Throws
/// InputError with the index when it is missing or malformed, or names a file outside its folder.
std::map<std::filesystem::path, std::set<std::string>> read_safetensors_index(
    const std::filesystem::path& index);

/// Returns such an index. `files`: the names of the files, without folders, and their tensors. `bytes`: of
/// all tensors.
std::string safetensors_index(const std::map<std::string, std::vector<std::string>>& files,
                              std::uint64_t bytes);

}  // namespace starpipe::model
