// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// Saves all parameters, `parameters[stage]` each, as a safetensors file under the names of
/// `Stage::parameters()`: a gpt file has the names and shapes of Hugging Face's GPT2LMHeadModel. The file's
/// metadata gets "format": "pt" and the configuration ("model", "layers", "heads", ...), then `metadata`.
/// Throws InputError naming the file when it cannot be written.
void save_weights(const std::filesystem::path& file, const Network& network,
                  const std::vector<std::vector<float>>& parameters,
                  const std::map<std::string, std::string>& metadata = {});

/// Parameters by stage, whatever the cuts of the network that was saved. Names of gpt may lack their
/// "transformer." (GPT2Model); an absent lm_head.weight is wte (tied weights, split here into two);
/// buffers of old checkpoints (attn.bias, attn.masked_bias) are ignored.
/// Throws InputError naming the file and the tensor that is missing, unknown or of another shape, or the
/// metadata entry ("heads", "context", ...) that contradicts the network's configuration.
std::vector<std::vector<float>> load_weights(const std::filesystem::path& file, const Network& network);

/// What training starts from, by stage: the file of `model.init` when set, else `initial_parameters`.
std::vector<std::vector<float>> start_parameters(const Network& network, std::uint64_t seed);

}  // namespace starpipe::model
