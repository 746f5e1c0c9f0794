// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "starpipe/model/network.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {

/// Returns the tensors of all parameters by name, put together from the pieces of shards.
std::map<std::string, Tensor> joined_tensors(const Network& network, const SetValues& parameters);

/// Saves the parameters of all sets, [set] as Network::sets() numbers them, as a safetensors file. Tensors
/// have the names in Network::sets(). The file's metadata is "format": "pt", the configuration ("model",
/// "layers", "heads", ...) and `metadata`. Throws InputError with the file when it cannot be written.
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

/// Returns the parameters that training starts from: from the file `model.init` if it is set, otherwise
/// initial_parameters().
SetValues start_parameters(const Network& network, std::uint64_t seed);

}  // namespace starpipe::model
