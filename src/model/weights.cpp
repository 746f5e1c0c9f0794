// SPDX-License-Identifier: Apache-2.0
#include "model/weights.hpp"

#include <algorithm>
#include <array>
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

/// True if starpipe has written these metadata: another program may have an entry "model", too.
bool are_own(const std::map<std::string, std::string>& metadata) {
  const auto kind = metadata.find("model");
  const std::vector<std::string> kinds = network_kinds();
  if (kind == metadata.end() || std::ranges::find(kinds, kind->second) == kinds.end()) return false;
  const std::vector<NetworkKey>& keys = find_network(kind->second).keys;
  return keys.empty() ||
         std::ranges::any_of(keys, [&](const NetworkKey& key) { return metadata.contains(key.name); });
}

/// Keys that may differ from the metadata's. Shapes show the vocabulary, which may be smaller in the file,
/// and the context of learned positions, which may be larger. No tensor depends on the context or the angles
/// of rotary positions. That the head is tied shows in the tensors.
constexpr std::array<std::string_view, 4> free_keys = {"vocabulary", "tied", "context", "rope_theta"};

/// Throws InputError when the metadata of a file that starpipe has written contradict the configuration.
/// Shapes alone do not show the number of heads.
void check_metadata(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata,
                    const ModelConfig& config) {
  if (!are_own(metadata)) return;
  for (const auto& [key, value] : describe(config)) {
    const auto saved = metadata.find(key);
    const bool is_free = std::ranges::find(free_keys, key) != free_keys.end();
    if (is_free || saved == metadata.end() || saved->second == value) continue;
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

/// True if the network's head is tied, so that files need not have its weight.
bool has_tied_head(const ModelConfig& config) {
  const std::vector<NetworkKey>& keys = find_network(config.kind).keys;
  return std::ranges::find(keys, "tied", &NetworkKey::name) != keys.end() && option<bool>(config, "tied");
}

/// The tensors of a file, or of all files that an index lists. Each of these has exactly the tensors that the
/// index says. But the weight of a tied head may be absent: some programs list it and do not write it.
std::map<std::string, Tensor> read_files(const std::filesystem::path& file,
                                         std::map<std::string, std::string>* metadata,
                                         const std::function<bool(const std::string& name)>& wanted,
                                         bool with_values, bool is_tied) {
  if (!is_safetensors_index(file)) return read_safetensors(file, metadata, wanted, with_values);
  std::map<std::string, Tensor> all;
  for (const auto& [part, names] : read_safetensors_index(file)) {
    std::map<std::string, Tensor> tensors = read_safetensors(part, metadata, wanted, with_values);
    for (const std::string& name : names) {
      if (!wanted(name) || tensors.contains(name) || (is_tied && name == "lm_head.weight")) continue;
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
struct ReadTensors {
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> names;  ///< as in the file
};

ReadTensors read_for(const std::filesystem::path& file, const ModelConfig& config, FileContents contents,
                     bool with_values) {
  const NetworkKind& kind = find_network(config.kind);
  const auto name_of = [&](const std::string& name) {
    return kind.weight_name ? kind.weight_name(name) : name;
  };
  ReadTensors read;
  auto& [tensors, names] = read;
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> in_file = read_files(
      file, &metadata, [&](const std::string& name) { return !name_of(name).empty(); }, with_values,
      has_tied_head(config));
  check_metadata(file, metadata, config);
  for (auto& [name, tensor] : in_file) {
    names.push_back(name);
    const auto [added, is_new] = tensors.try_emplace(name_of(name), std::move(tensor));
    if (!is_new) throw bad_tensor(file, added->first, "is there twice, with and without its prefix");
  }
  try {
    complete(tensors, config, contents);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", file.string(), error.what()));
  }
  return read;
}

/// Returns why a tensor may be missing, for users of other programs' files; "" if nothing shows it.
std::string hint_of_missing(const std::string& name, const std::vector<std::string>& names) {
  for (const std::string& in_file : names) {
    if (in_file.size() > name.size() && in_file.ends_with("." + name)) {
      return fmt::format(
          "; the file has {}: remove \"{}\" from its names (torch.compile and wrappers of "
          "models add such prefixes)",
          in_file, in_file.substr(0, in_file.size() - name.size()));
    }
  }
  const auto is_bias = [](const std::string& other) { return other.ends_with(".bias"); };
  return is_bias(name) && std::ranges::none_of(names, is_bias)
             ? "; the file has no biases (nanoGPT's bias: False): add them as zeros"
             : "";
}

/// The tensor of a parameter, or the one of which it is a piece.
Tensor& tensor_of(ReadTensors& read, const Parameter& parameter, const std::filesystem::path& file) {
  const auto found = read.tensors.find(parameter.name);
  if (found == read.tensors.end())
    throw bad_tensor(file, parameter.name, "is missing" + hint_of_missing(parameter.name, read.names));
  const std::vector<std::size_t>& shape = found->second.shape;
  const std::vector<std::size_t> wanted = parameter.whole_shape();
  if (shape != wanted) {
    const bool transposed =
        shape.size() == 2 && std::ranges::equal(shape.rbegin(), shape.rend(), wanted.begin(), wanted.end());
    throw bad_tensor(
        file, parameter.name,
        fmt::format("has shape {}, the model has {}{}", shape, wanted,
                    transposed ? ": it seems transposed, as nanoGPT's weights are for GPT-2; transpose the "
                                 "weights of all linear layers of blocks, also the square ones, whose shape "
                                 "does not show it"
                               : ""));
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
  ReadTensors read = read_for(file, network.config, contents, true);
  const std::vector<ParameterSet> sets = network.sets();
  SetValues parameters;
  for (const ParameterSet& set : sets) {
    std::vector<float>& values = parameters.emplace_back();
    values.reserve(set.size);
    for (const Parameter& parameter : set.parameters) {
      Tensor& tensor = tensor_of(read, parameter, file);
      require_finite(file, parameter.name, tensor.values);
      values.resize(values.size() + parameter.size());
      parameter.piece.take(tensor.values, std::span(values).last(parameter.size()));
      if (!parameter.piece) tensor.values = {};  // so that the weights are in memory once
    }
  }
  require_known(read.tensors, sets, file);
  return parameters;
}

void check_weights(const std::filesystem::path& file, const Network& network) {
  ReadTensors read = read_for(file, network.config, FileContents::start_weights, false);
  const std::vector<ParameterSet> sets = network.sets();
  for (const ParameterSet& set : sets) {
    for (const Parameter& parameter : set.parameters) tensor_of(read, parameter, file);
  }
  require_known(read.tensors, sets, file);
}

SetValues start_parameters(const Network& network, std::uint64_t seed) {
  if (network.config.init) return load_weights(*network.config.init, network);
  SetValues parameters;
  for (const ParameterSet& set : network.sets())
    parameters.push_back(initial_parameters(set.parameters, seed));
  return parameters;
}

}  // namespace starpipe::model
