// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "model/weights.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {

/// The parameters of a network in a safetensors file, or in the files of an index. Reads only the numbers
/// that are asked for, in parts of at most 1 MiB besides the result. Not thread-safe.
class WeightsFile {
 public:
  /// Reads the headers. Throws InputError as load_weights does, for all mistakes that headers show.
  WeightsFile(std::filesystem::path file, const Network& network, FileContents contents);

  /// Reads the numbers of a parameter, of a piece only the piece's. Throws InputError with the file and the
  /// tensor if they hold infinity or NaN, cannot be read, or are a tied table that differs from the head.
  void read(const Parameter& parameter, std::span<float> values);
  /// Reads the numbers of all parameters of a set.
  void read(const ParameterSet& set, std::span<float> values);

  /// Returns a hash of the files' inodes, sizes and times of change in nanoseconds. Processes with the same
  /// hash read the same files, also on hosts that share a folder: copies differ in time or inode.
  [[nodiscard]] std::uint64_t place() const;
  /// Returns a hash of the names, shapes and values of all tensors. Reads all files.
  std::uint64_t digest();

 private:
  /// A tensor of a file.
  struct InFile {
    SafetensorsReader* reader = nullptr;
    std::string name;  ///< in the file
    std::vector<std::size_t> shape;
    std::vector<float> mean_row = {};  ///< of a table with fewer tokens than the model; made when needed
  };

  void open(const std::function<bool(const std::string& name)>& wanted,
            std::map<std::string, std::string>& metadata, bool is_tied);
  void complete(const ModelConfig& config, FileContents contents);
  void require_fit(const Parameter& parameter) const;
  [[nodiscard]] InputError differs_from_tied(const SavedTensor& tensor) const;
  void read_part(const std::string& parameter, const SavedTensor& tensor, std::size_t first,
                 std::span<float> values);
  void add_rows(InFile& table, std::size_t first, std::span<float> values);

  std::filesystem::path file_;
  std::list<SafetensorsReader> readers_;
  std::vector<std::filesystem::path> paths_;
  std::map<std::string, InFile> in_file_;       // by the name that the network has for the tensor
  std::map<std::string, SavedTensor> tensors_;  // completed; by the parameter's name
};

}  // namespace starpipe::model
