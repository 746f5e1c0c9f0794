// SPDX-License-Identifier: Apache-2.0
#include "model/weights.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "model/weights_file.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::model {
namespace {

constexpr std::string_view weights_subject = "safetensors";   // of messages
constexpr std::size_t max_converted = std::size_t{1} << 16U;  // numbers

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

std::filesystem::path shard_name(const std::filesystem::path& file, std::size_t number, std::size_t count) {
  return file.parent_path() /
         fmt::format("{}-{:05}-of-{:05}{}", file.stem().string(), number, count, file.extension().string());
}

WeightsLayout::WeightsLayout(const std::filesystem::path& file, const Network& network,
                             const SaveFormat& format, const std::map<std::string, std::string>& metadata)
    : type_(format.type) {
  std::map<std::string, std::vector<std::size_t>> tensors;
  for_each_parameter(network.sets(), [&](const Parameter& parameter, std::size_t, std::size_t) {
    tensors[parameter.name] = parameter.whole_shape();
  });
  std::vector<std::vector<TensorShape>> shards(1);
  std::uint64_t bytes = 0;  // of the last shard
  std::uint64_t total = 0;
  for (const auto& [name, shape] : tensors) {
    const std::uint64_t size = stored_bytes(type_) * count_of(shape);
    if (bytes > 0 && size > format.max_shard_size - std::min(bytes, format.max_shard_size)) {
      shards.emplace_back();
      bytes = 0;
    }
    places_[name] = {shards.size() - 1, bytes};  // completed below
    shards.back().push_back({name, shape});
    bytes += size;
    total += size;
  }
  std::map<std::string, std::string> all = metadata_of(network.config);
  all["format"] = "pt";
  for (const auto& [key, value] : metadata) all[key] = value;
  std::map<std::string, std::vector<std::string>> names;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    File& made = files_.emplace_back();
    made.path = shards.size() == 1 ? file : shard_name(file, s + 1, shards.size());
    made.start = safetensors_start(shards[s], all, type_);
    made.bytes = made.start.size();
    for (const auto& [name, shape] : shards[s]) {
      places_[name].offset += made.start.size();
      made.bytes += stored_bytes(type_) * count_of(shape);
      names[made.path.filename().string()].push_back(name);
    }
  }
  if (shards.size() > 1) index_ = {file.string() + ".index.json", safetensors_index(names, total)};
}

void WeightsLayout::place(const Parameter& parameter, std::span<const float> values,
                          const std::function<void(std::size_t file, std::uint64_t offset,
                                                   std::span<const std::byte> bytes)>& write) const {
  const Place& place = places_.at(parameter.name);
  const auto put = [&](std::size_t to, std::span<const float> run) {
    const std::uint64_t offset = place.offset + stored_bytes(type_) * to;
    if (type_ == StoredType::fp32) {
      write(place.file, offset, std::as_bytes(run));
    } else {
      const std::vector<std::uint16_t> stored = stored_numbers(type_, run);
      write(place.file, offset, std::as_bytes(std::span(stored)));
    }
  };
  parameter.piece.for_each_run(values.size(), [&](std::size_t to, std::size_t from, std::size_t count) {
    const std::size_t step = type_ == StoredType::fp32 ? std::max<std::size_t>(1, count) : max_converted;
    for (std::size_t at = 0; at < count; at += step)
      put(to + at, values.subspan(from + at, std::min(step, count - at)));
  });
}

WeightsOutput::WeightsOutput(const WeightsLayout& layout) : layout_(layout) {
  for (const WeightsLayout::File& file : layout.files()) {
    const NewFile& made = files_.emplace_back(std::string(weights_subject), file.path);
    made.open().close();
    std::error_code error;
    std::filesystem::resize_file(made.path(), file.bytes, error);
    if (error)
      throw std::runtime_error(
          fmt::format("{}: cannot write {}: {}", weights_subject, file.path.string(), error.message()));
  }
}

std::vector<std::filesystem::path> WeightsOutput::paths() const {
  std::vector<std::filesystem::path> paths;
  for (const NewFile& file : files_) paths.push_back(std::filesystem::absolute(file.path()));
  return paths;
}

// A file gets its header last. While there is no index, no program reads a mixture of new and earlier files.
void WeightsOutput::finish() {
  auto file = files_.begin();
  for (const auto& [path, start, bytes] : layout_.files()) {
    PlacedWriter writer(weights_subject, path, file++->path());
    writer.write(0, std::as_bytes(std::span(start)));
    writer.close();
  }
  const auto& index = layout_.index();
  std::error_code error;
  if (index) std::filesystem::remove(index->path, error);
  for (NewFile& made : files_) made.finish();
  if (index) write_file(weights_subject, index->path, index->text);
}

void WeightsWriter::write(const Parameter& parameter, std::span<const float> values) {
  layout_.place(parameter, values,
                [&](std::size_t file, std::uint64_t offset, std::span<const std::byte> bytes) {
                  if (!open_ || number_ != file) {
                    close();
                    open_.emplace(weights_subject, layout_.files()[file].path, paths_.at(file));
                    number_ = file;
                  }
                  open_->write(offset, bytes);
                });
}

void WeightsWriter::close() {
  if (open_) open_->close();
  open_.reset();
}

CollectedWeights::CollectedWeights(const WeightsLayout& layout)
    : layout_(layout), bytes_(layout.files().front().start) {
  bytes_.resize(layout.files().front().bytes);
}

void CollectedWeights::write(const Parameter& parameter, std::span<const float> values) {
  layout_.place(parameter, values, [&](std::size_t, std::uint64_t offset, std::span<const std::byte> bytes) {
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(bytes_)).subspan(offset).begin());
  });
}

void CollectedWeights::finish() const { write_file(weights_subject, layout_.files().front().path, bytes_); }

void save_weights(const std::filesystem::path& file, const Network& network, const SetValues& parameters,
                  const std::map<std::string, std::string>& metadata, const SaveFormat& format) {
  const WeightsLayout layout(file, network, format, metadata);
  const auto write_all = [&](auto& writer) {
    for_each_parameter(network.sets(), [&](const Parameter& parameter, std::size_t set, std::size_t first) {
      writer.write(parameter, std::span(parameters[set]).subspan(first, parameter.size()));
    });
  };
  if (!is_replaced(file)) {
    CollectedWeights collected(layout);
    write_all(collected);
    collected.finish();
    return;
  }
  WeightsOutput output(layout);
  WeightsWriter writer(layout, output.paths());
  write_all(writer);
  writer.close();
  output.finish();
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
  return [all = std::make_shared<const SetValues>(std::move(values))](const SetParameter& of,
                                                                      std::span<float> out) {
    std::ranges::copy(std::span(all->at(of.set)).subspan(of.first, out.size()), out.begin());
  };
}

StartValues start_values(const std::shared_ptr<WeightsFile>& file, const Network& network) {
  return [file, sets = network.sets()](const SetParameter& of, std::span<float> out) {
    file->read(sets.at(of.set).parameters.at(of.number), out);
  };
}

StartValues start_values(const Network& network, std::uint64_t seed) {
  if (const auto& init = network.config.init)
    return start_values(std::make_shared<WeightsFile>(*init, network, FileContents::start_weights), network);
  return [seed, sets = network.sets()](const SetParameter& of, std::span<float> out) {
    initial_parameters(std::span(sets.at(of.set).parameters).subspan(of.number, 1), seed, out);
  };
}

SetValues start_parameters(const Network& network, std::uint64_t seed) {
  const StartValues start = start_values(network, seed);
  SetValues parameters;
  for (const ParameterSet& set : network.sets()) {
    const std::size_t number = parameters.size();
    std::vector<float>& values = parameters.emplace_back(set.size);
    std::vector<std::size_t> sizes;
    for (const Parameter& parameter : set.parameters) sizes.push_back(parameter.size());
    for_each_parameter(number, sizes, [&](const SetParameter& of, std::size_t size) {
      start(of, std::span(values).subspan(of.first, size));
    });
  }
  return parameters;
}

}  // namespace starpipe::model
