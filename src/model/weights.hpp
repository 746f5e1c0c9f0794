// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {

/// Returns a network's configuration as the metadata of a file: "model", "layers", "heads", ...
std::map<std::string, std::string> metadata_of(const ModelConfig& config);

/// Returns the tensors of all parameters by name, put together from the pieces of shards.
std::map<std::string, Tensor> joined_tensors(const Network& network, const SetValues& parameters);

/// Returns the name of one of several files of weights, as Hugging Face names them:
/// "model-00001-of-00003.safetensors" of "model.safetensors". `number`: from 1.
std::filesystem::path shard_name(const std::filesystem::path& file, std::size_t number, std::size_t count);

/// The places of a network's parameters in a safetensors file, or in several and an index. Tensors have the
/// names in Network::sets(), and lie in the order of their names. The files' metadata are "format": "pt", the
/// configuration ("model", "layers", "heads", ...) and `metadata`. Depends on the arguments alone.
class WeightsLayout {
 public:
  struct File {
    std::filesystem::path path;
    std::string start;  ///< the bytes before the tensors
    std::uint64_t bytes = 0;
  };
  struct Index {
    std::filesystem::path path;
    std::string text;
  };

  WeightsLayout(const std::filesystem::path& file, const Network& network, const SaveFormat& format = {},
                const std::map<std::string, std::string>& metadata = {});

  [[nodiscard]] const std::vector<File>& files() const { return files_; }
  /// Returns the index of several files; nullopt for one file.
  [[nodiscard]] const std::optional<Index>& index() const { return index_; }
  /// Calls `write` with the bytes of a parameter, or of its piece, in the file of this number, from this byte
  /// of the file on.
  void place(const Parameter& parameter, std::span<const float> values,
             const std::function<void(std::size_t file, std::uint64_t offset,
                                      std::span<const std::byte> bytes)>& write) const;

 private:
  struct Place {
    std::size_t file = 0;
    std::uint64_t offset = 0;
  };

  StoredType type_;
  std::vector<File> files_;
  std::optional<Index> index_;
  std::map<std::string, Place> places_;
};

/// Makes the files of a layout under temporary names, and gives them their names when they are complete:
/// earlier files of these names stay until then. Throws InputError when a file cannot be made,
/// std::runtime_error when the disk is full or fails; messages name the file.
class WeightsOutput {
 public:
  /// Makes the files in their size, without content. They must be files that `is_replaced`.
  explicit WeightsOutput(const WeightsLayout& layout);

  /// Returns where the tensors are to be written.
  [[nodiscard]] std::vector<std::filesystem::path> paths() const;
  void finish();

 private:
  const WeightsLayout& layout_;
  std::list<NewFile> files_;
};

/// Writes parameters to the files that a WeightsOutput has made. Other processes may write other parameters
/// at the same time. Needs little memory besides the parameters. Throws std::runtime_error as PlacedWriter.
class WeightsWriter {
 public:
  /// `paths`: of the output.
  WeightsWriter(const WeightsLayout& layout, std::vector<std::filesystem::path> paths)
      : layout_(layout), paths_(std::move(paths)) {}

  void write(const Parameter& parameter, std::span<const float> values);
  void close();

 private:
  const WeightsLayout& layout_;
  std::vector<std::filesystem::path> paths_;
  std::optional<PlacedWriter> open_;
  std::size_t number_ = 0;  // of the open file
};

/// Collects the parameters of a layout of one file in memory, for a pipe or a device.
class CollectedWeights {
 public:
  explicit CollectedWeights(const WeightsLayout& layout);

  void write(const Parameter& parameter, std::span<const float> values);
  /// Throws as write_file does.
  void finish() const;

 private:
  const WeightsLayout& layout_;
  std::string bytes_;
};

/// Saves the parameters of all sets, [set] as Network::sets() numbers them. Throws InputError with the file
/// when it cannot be written.
void save_weights(const std::filesystem::path& file, const Network& network, const SetValues& parameters,
                  const std::map<std::string, std::string>& metadata = {}, const SaveFormat& format = {});

/// The contents of a file of tensors.
enum class FileContents : std::uint8_t {
  start_weights,  ///< tensors and rows may be left out (NetworkKind::complete_weights)
  weights,        ///< nothing is left out; a tied head may be there next to its equal embedding
  gradients       ///< nothing is left out, nothing is there twice
};

/// Loads the parameters of all sets, [set]. The file may come from a network with other cuts, or from
/// another program with names of its own (NetworkKind::weight_name). It may be an index of several files
/// (is_safetensors_index). `contents`: the tensors that the file must have. Throws InputError with the file
/// and the tensor that is missing, unknown, of another shape or of a type that is not read, or the metadata
/// entry ("heads", "context", ...) that contradicts the network's configuration.
SetValues load_weights(const std::filesystem::path& file, const Network& network,
                       FileContents contents = FileContents::start_weights);

/// Throws InputError as load_weights does for start weights, but reads only the header of the file and no
/// parameters.
void check_weights(const std::filesystem::path& file, const Network& network);

/// A parameter of a set.
struct SetParameter {
  std::size_t set = 0;     ///< as Network::sets() numbers them
  std::size_t number = 0;  ///< in ParameterSet::parameters
  std::size_t first = 0;   ///< place of its first number among those of the set
};

/// Writes the values that a parameter starts from. `values`: as many as it has numbers. Not thread-safe.
/// Throws InputError as WeightsFile::read does.
using StartValues = std::function<void(const SetParameter& of, std::span<float> values)>;

/// Calls f(SetParameter, number of values) for each parameter of a set whose parameters have so many numbers.
template <class Sizes, class Function>
void for_each_parameter(std::size_t set, const Sizes& sizes, Function&& f) {
  SetParameter of = {.set = set};
  for (const std::size_t size : sizes) {
    f(of, size);
    of.first += size;
    ++of.number;
  }
}

class WeightsFile;

/// Returns the values of a file.
StartValues start_values(const std::shared_ptr<WeightsFile>& file, const Network& network);
/// Returns the values that training starts from: of the file `model.init` if it is set, otherwise
/// initial_parameters(). Makes no value before it is asked for. Throws InputError as check_weights does.
StartValues start_values(const Network& network, std::uint64_t seed);
/// Returns the same values of all sets, [set].
SetValues start_parameters(const Network& network, std::uint64_t seed);
/// Returns these values, [set].
StartValues given_values(SetValues values);

}  // namespace starpipe::model
