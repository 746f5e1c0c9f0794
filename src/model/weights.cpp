// SPDX-License-Identifier: Apache-2.0
#include "model/weights.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {
namespace {

/// The network's configuration as metadata of a file.
std::map<std::string, std::string> describe(const ModelConfig& config) {
  std::map<std::string, std::string> result = {{"model", config.kind}};
  for (const NetworkKey& key : find_network(config.kind).keys) {
    if (!key.cuts_only) result[key.name] = to_string(option_value(config, key.name));
  }
  return result;
}

/// Throws InputError when the metadata of a file that starpipe has written contradict the configuration.
/// Shapes alone do not show the number of heads. They do show the vocabulary, which may be smaller in the
/// file. That the head is tied shows in the tensors.
void check_metadata(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata,
                    const ModelConfig& config) {
  if (!metadata.contains("model")) return;
  for (const auto& [key, value] : describe(config)) {
    const auto saved = metadata.find(key);
    if (key == "vocabulary" || key == "tied" || saved == metadata.end() || saved->second == value) continue;
    throw InputError(fmt::format("{}: was saved with {} {}, the configuration has {}", file.string(), key,
                                 saved->second, value));
  }
}

/// Completes the tensors of start weights. What other files leave out stays missing.
void complete(std::map<std::string, Tensor>& tensors, const ModelConfig& config, FileContents contents) {
  const NetworkKind& kind = find_network(config.kind);
  if (!kind.complete_weights || contents == FileContents::gradients) return;
  std::map<std::string, std::vector<std::size_t>> shapes;
  for (const auto& [name, tensor] : tensors) shapes[name] = tensor.shape;
  kind.complete_weights(tensors, config);
  if (contents == FileContents::start_weights) return;
  std::erase_if(tensors, [&](const auto& entry) { return !shapes.contains(entry.first); });
  for (auto& [name, tensor] : tensors) tensor.shape = shapes[name];  // `taken` refuses another one
}

/// The tensors of a file, or of all files that an index lists. Each of these has exactly the tensors that the
/// index says.
std::map<std::string, Tensor> read_files(const std::filesystem::path& file,
                                         std::map<std::string, std::string>* metadata,
                                         const std::function<bool(const std::string& name)>& wanted,
                                         bool with_values) {
  if (!is_safetensors_index(file)) return read_safetensors(file, metadata, wanted, with_values);
  std::map<std::string, Tensor> all;
  for (const auto& [part, names] : read_safetensors_index(file)) {
    std::map<std::string, Tensor> tensors = read_safetensors(part, metadata, wanted, with_values);
    for (const std::string& name : names) {
      if (!wanted(name) || tensors.contains(name)) continue;
      throw bad_tensor(part, name, "is missing; " + file.string() + " says that it is here");
    }
    for (const auto& [name, tensor] : tensors) {
      if (names.contains(name)) continue;
      throw bad_tensor(part, name, file.string() + " does not say that it is here");
    }
    all.merge(tensors);
  }
  return all;
}

/// The tensors of a file or of several, with the network's names and completed.
std::map<std::string, Tensor> read_for(const std::filesystem::path& file, const ModelConfig& config,
                                       FileContents contents, bool with_values) {
  const NetworkKind& kind = find_network(config.kind);
  const auto name_of = [&](const std::string& name) {
    return kind.weight_name ? kind.weight_name(name) : name;
  };
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> in_file = read_files(
      file, &metadata, [&](const std::string& name) { return !name_of(name).empty(); }, with_values);
  check_metadata(file, metadata, config);
  std::map<std::string, Tensor> tensors;
  for (auto& [name, tensor] : in_file) {
    const auto [added, is_new] = tensors.try_emplace(name_of(name), std::move(tensor));
    if (!is_new) throw bad_tensor(file, added->first, "is there twice, with and without its prefix");
  }
  try {
    complete(tensors, config, contents);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", file.string(), error.what()));
  }
  return tensors;
}

/// The tensor of a parameter, or the one of which it is a piece.
Tensor& tensor_of(std::map<std::string, Tensor>& tensors, const Parameter& parameter,
                  const std::filesystem::path& file) {
  const auto found = tensors.find(parameter.name);
  if (found == tensors.end()) throw bad_tensor(file, parameter.name, "is missing");
  if (found->second.shape != parameter.whole_shape()) {
    throw bad_tensor(
        file, parameter.name,
        fmt::format("has shape {}, the model has {}", found->second.shape, parameter.whole_shape()));
  }
  return found->second;
}

/// Throws InputError when a value is infinity or NaN: the first step would fail, or train nothing.
void require_finite(const std::filesystem::path& file, const std::string& tensor,
                    std::span<const float> values) {
  const auto bad = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
  if (bad == values.end()) return;
  throw bad_tensor(
      file, tensor,
      fmt::format("value {} is {}", bad - values.begin(), std::isnan(*bad) ? "NaN" : "infinity"));
}

/// Throws InputError when the file has a tensor of which the network has no part.
void require_known(const std::map<std::string, Tensor>& tensors, const std::vector<ParameterSet>& sets,
                   const std::filesystem::path& file) {
  std::set<std::string_view> known;
  for (const ParameterSet& set : sets) {
    for (const Parameter& parameter : set.parameters) known.insert(parameter.name);
  }
  for (const auto& [name, tensor] : tensors) {
    if (!known.contains(name)) throw bad_tensor(file, name, "is not one of the model's");
  }
}

}  // namespace

std::map<std::string, Tensor> joined_tensors(const Network& network, const SetValues& parameters) {
  std::map<std::string, Tensor> tensors;
  for_each_parameter(network.sets(), [&](const Parameter& parameter, std::size_t set, std::size_t first) {
    Tensor& tensor = tensors[parameter.name];
    tensor.shape = parameter.whole_shape();
    tensor.values.resize(parameter.whole_size());
    parameter.piece.put(std::span(parameters[set]).subspan(first, parameter.size()), tensor.values);
  });
  return tensors;
}

void save_weights(const std::filesystem::path& file, const Network& network, const SetValues& parameters,
                  const std::map<std::string, std::string>& metadata) {
  std::map<std::string, std::string> all = describe(network.config);
  all["format"] = "pt";
  for (const auto& [key, value] : metadata) all[key] = value;
  write_safetensors(file, joined_tensors(network, parameters), all);
}

SetValues load_weights(const std::filesystem::path& file, const Network& network, FileContents contents) {
  std::map<std::string, Tensor> tensors = read_for(file, network.config, contents, true);
  const std::vector<ParameterSet> sets = network.sets();
  SetValues parameters;
  for (const ParameterSet& set : sets) {
    std::vector<float>& values = parameters.emplace_back();
    values.reserve(set.size);
    for (const Parameter& parameter : set.parameters) {
      Tensor& tensor = tensor_of(tensors, parameter, file);
      require_finite(file, parameter.name, tensor.values);
      values.resize(values.size() + parameter.size());
      parameter.piece.take(tensor.values, std::span(values).last(parameter.size()));
      if (!parameter.piece) tensor.values = {};  // so that the weights are in memory once
    }
  }
  require_known(tensors, sets, file);
  return parameters;
}

void check_weights(const std::filesystem::path& file, const Network& network) {
  std::map<std::string, Tensor> tensors = read_for(file, network.config, FileContents::start_weights, false);
  const std::vector<ParameterSet> sets = network.sets();
  for (const ParameterSet& set : sets) {
    for (const Parameter& parameter : set.parameters) tensor_of(tensors, parameter, file);
  }
  require_known(tensors, sets, file);
}

SetValues start_parameters(const Network& network, std::uint64_t seed) {
  if (network.config.init) return load_weights(*network.config.init, network);
  SetValues parameters;
  for (const ParameterSet& set : network.sets())
    parameters.push_back(initial_parameters(set.parameters, seed));
  return parameters;
}

}  // namespace starpipe::model
