// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starpipe/model/network.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {

/// Returns a network's configuration as the metadata of a file: "model", "layers", "heads", ...
std::map<std::string, std::string> metadata_of(const ModelConfig& config);

/// Returns the tensors of all parameters by name, put together from the pieces of shards.
std::map<std::string, Tensor> joined_tensors(const Network& network, const SetValues& parameters);

/// Calls `use` once for each parameter of a network, in any order, with its numbers.
using ParameterSource = std::function<void(
    const std::function<void(const Parameter& parameter, std::span<const float> values)>& use)>;

/// Saves all parameters as a safetensors file, without a copy of them: each goes to its place in the file
/// when `source` gives it; only for a pipe or a device they are gathered first. Tensors have the names in
/// Network::sets(). The file's metadata is "format": "pt", the configuration ("model", "layers", "heads",
/// ...) and `metadata`. Throws InputError with the file when it cannot be written; `source` may then not have
/// been called.
void save_weights(const std::filesystem::path& file, const Network& network, const ParameterSource& source,
                  const std::map<std::string, std::string>& metadata = {});
/// Saves the parameters of all sets, [set] as Network::sets() numbers them.
void save_weights(const std::filesystem::path& file, const Network& network, const SetValues& parameters,
                  const std::map<std::string, std::string>& metadata = {});

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

/// Writes the values that a set of parameters starts from. `set`: as Network::sets() numbers them. `values`:
/// as many as the set has parameters. Not thread-safe. Throws InputError as WeightsFile::read does.
using StartValues = std::function<void(std::size_t set, std::span<float> values)>;

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
