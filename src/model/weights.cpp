// SPDX-License-Identifier: Apache-2.0
#include "model/weights.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "model/weights_file.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {
namespace {

/// True unless the file is a pipe or a device.
bool is_seekable(const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(file, error);
  return !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
}

}  // namespace

std::map<std::string, std::string> metadata_of(const ModelConfig& config) {
  std::map<std::string, std::string> result = {{"model", config.kind}};
  for (const NetworkKey& key : find_network(config.kind).keys) {
    if (!key.cuts_only) result[key.name] = to_string(option_value(config, key.name));
  }
  return result;
}

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

void save_weights(const std::filesystem::path& file, const Network& network, const ParameterSource& source,
                  const std::map<std::string, std::string>& metadata) {
  std::map<std::string, std::string> all = metadata_of(network.config);
  all["format"] = "pt";
  for (const auto& [key, value] : metadata) all[key] = value;
  std::map<std::string, Tensor> whole;
  for_each_parameter(network.sets(), [&](const Parameter& parameter, std::size_t, std::size_t) {
    whole[parameter.name].shape = parameter.whole_shape();
  });
  if (!is_seekable(file)) {
    source([&](const Parameter& parameter, std::span<const float> values) {
      Tensor& tensor = whole[parameter.name];
      tensor.values.resize(parameter.whole_size());
      parameter.piece.put(values, tensor.values);
    });
    write_safetensors(file, whole, all);
    return;
  }
  std::vector<TensorShape> shapes;
  shapes.reserve(whole.size());
  for (auto& [name, tensor] : whole) shapes.push_back({name, std::move(tensor.shape)});
  write_safetensors(file, shapes, all, [&](const TensorWriter& write) {
    source([&](const Parameter& parameter, std::span<const float> values) {
      parameter.piece.for_each_run(values.size(), [&](std::size_t to, std::size_t from, std::size_t count) {
        write(parameter.name, to, values.subspan(from, count));
      });
    });
  });
}

void save_weights(const std::filesystem::path& file, const Network& network, const SetValues& parameters,
                  const std::map<std::string, std::string>& metadata) {
  const auto source = [&](const auto& use) {
    for_each_parameter(network.sets(), [&](const Parameter& parameter, std::size_t set, std::size_t first) {
      use(parameter, std::span(parameters[set]).subspan(first, parameter.size()));
    });
  };
  save_weights(file, network, ParameterSource(source), metadata);
}

SetValues load_weights(const std::filesystem::path& file, const Network& network, FileContents contents) {
  WeightsFile weights(file, network, contents);
  SetValues parameters;
  for (const ParameterSet& set : network.sets()) weights.read(set, parameters.emplace_back(set.size));
  return parameters;
}

void check_weights(const std::filesystem::path& file, const Network& network) {
  const WeightsFile checked(file, network, FileContents::start_weights);
}

StartValues given_values(SetValues values) {
  return [all = std::make_shared<const SetValues>(std::move(values))](std::size_t set, std::span<float> out) {
    std::ranges::copy(all->at(set), out.begin());
  };
}

StartValues start_values(const std::shared_ptr<WeightsFile>& file, const Network& network) {
  return
      [file, sets = network.sets()](std::size_t set, std::span<float> out) { file->read(sets.at(set), out); };
}

StartValues start_values(const Network& network, std::uint64_t seed) {
  if (const auto& init = network.config.init)
    return start_values(std::make_shared<WeightsFile>(*init, network, FileContents::start_weights), network);
  return [seed, sets = network.sets()](std::size_t set, std::span<float> out) {
    initial_parameters(sets.at(set).parameters, seed, out);
  };
}

SetValues start_parameters(const Network& network, std::uint64_t seed) {
  const StartValues start = start_values(network, seed);
  SetValues parameters;
  for (const ParameterSet& set : network.sets()) {
    const std::size_t number = parameters.size();
    start(number, parameters.emplace_back(set.size));
  }
  return parameters;
}

}  // namespace starpipe::model
