// SPDX-License-Identifier: Apache-2.0
#include "model/weights_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::model {
namespace {

constexpr std::size_t max_part = std::size_t{1} << 18U;  // numbers that are read at a time

/// Calls f(first, count) for the parts of [0, size).
template <class Function>
void for_each_part(std::size_t size, Function&& f) {
  for (std::size_t at = 0; at < size; at += max_part) f(at, std::min(max_part, size - at));
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

/// The keys whose values in the file and in the configuration may differ. A smaller vocabulary and a larger
/// context of learned positions show in the shapes of the file's tensors, and a tied head in its tensors. No
/// tensor depends on the context or the angles of rotary positions.
constexpr std::array<std::string_view, 4> free_keys = {"vocabulary", "tied", "context", "rope_theta"};

/// Throws InputError when the metadata of a file that starpipe has written contradict the configuration.
/// Shapes alone do not show the number of heads.
void check_metadata(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata,
                    const ModelConfig& config) {
  if (!are_own(metadata)) return;
  for (const auto& [key, value] : metadata_of(config)) {
    const auto saved = metadata.find(key);
    const bool is_free = std::ranges::find(free_keys, key) != free_keys.end();
    if (is_free || saved == metadata.end() || saved->second == value) continue;
    throw InputError(fmt::format("{}: was saved with {} {}, the configuration has {}", file.string(), key,
                                 saved->second, value));
  }
}

/// True if the network's head is tied, so that files need not have its weight.
bool has_tied_head(const ModelConfig& config) {
  const std::vector<NetworkKey>& keys = find_network(config.kind).keys;
  return std::ranges::find(keys, "tied", &NetworkKey::name) != keys.end() && option<bool>(config, "tied");
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

}  // namespace

WeightsFile::WeightsFile(std::filesystem::path file, const Network& network, FileContents contents)
    : file_(std::move(file)) {
  const NetworkKind& kind = find_network(network.config.kind);
  const auto is_wanted = [&](const std::string& name) {
    return !kind.weight_name || !kind.weight_name(name).empty();
  };
  std::map<std::string, std::string> metadata;
  open(is_wanted, metadata, has_tied_head(network.config));
  check_metadata(file_, metadata, network.config);
  for (SafetensorsReader& reader : readers_) {
    for (const auto& [name, shape] : reader.tensors()) {
      const std::string known = kind.weight_name ? kind.weight_name(name) : name;
      if (!in_file_.emplace(known, InFile{.reader = &reader, .name = name, .shape = shape}).second)
        throw bad_tensor(file_, known, "is there twice, with and without its prefix");
      tensors_[known] = {.from = known, .shape = shape, .equal_to = {}};
    }
  }
  complete(network.config, contents);
  std::set<std::string_view> known;
  const std::vector<ParameterSet> sets = network.sets();
  for (const ParameterSet& set : sets) {
    for (const Parameter& parameter : set.parameters) {
      require_fit(parameter);
      known.insert(parameter.name);
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    if (!known.contains(name)) throw bad_tensor(file_, name, "is not one of the model's");
  }
}

// Each file of an index has exactly the tensors that the index says. But the weight of a tied head may be
// absent: some programs list it and do not write it.
void WeightsFile::open(const std::function<bool(const std::string& name)>& wanted,
                       std::map<std::string, std::string>& metadata, bool is_tied) {
  paths_.push_back(file_);
  if (!is_safetensors_index(file_)) {
    readers_.emplace_back(file_, &metadata, wanted);
    return;
  }
  for (const auto& [part, names] : read_safetensors_index(file_)) {
    if (is_tied && names == std::set<std::string>{"lm_head.weight"} && !std::filesystem::exists(part))
      continue;
    paths_.push_back(part);
    const SafetensorsReader& reader = readers_.emplace_back(part, &metadata, wanted);
    for (const std::string& name : names) {
      if (!wanted(name) || reader.shape(name) != nullptr || (is_tied && name == "lm_head.weight")) continue;
      throw bad_tensor(part, name, "is missing; " + file_.string() + " says that it is here");
    }
    for (const auto& [name, shape] : reader.tensors()) {
      if (names.contains(name)) continue;
      throw bad_tensor(part, name, file_.string() + " does not say that it is here");
    }
  }
}

// Completes the tensors of start weights. What other files leave out stays missing.
void WeightsFile::complete(const ModelConfig& config, FileContents contents) {
  const NetworkKind& kind = find_network(config.kind);
  if (!kind.complete_weights || contents == FileContents::gradients) return;
  try {
    kind.complete_weights(tensors_, config);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", file_.string(), error.what()));
  }
  if (contents != FileContents::start_weights) {
    std::erase_if(tensors_, [&](const auto& entry) { return !in_file_.contains(entry.first); });
    for (auto& [name, tensor] : tensors_)
      tensor.shape = in_file_[name].shape;  // `require_fit` refuses others
  }
}

// Throws InputError unless the parameter's tensor is there with its shape.
void WeightsFile::require_fit(const Parameter& parameter) const {
  const auto found = tensors_.find(parameter.name);
  if (found == tensors_.end()) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : in_file_) names.push_back(tensor.name);
    throw bad_tensor(file_, parameter.name, "is missing" + hint_of_missing(parameter.name, names));
  }
  const SavedTensor& tensor = found->second;
  if (!tensor.equal_to.empty() && in_file_.at(tensor.equal_to).shape != in_file_.at(tensor.from).shape)
    throw differs_from_tied(tensor);
  const std::vector<std::size_t>& shape = tensor.shape;
  const std::vector<std::size_t> wanted = parameter.whole_shape();
  if (shape == wanted) return;
  const bool transposed =
      shape.size() == 2 && std::ranges::equal(shape.rbegin(), shape.rend(), wanted.begin(), wanted.end());
  throw bad_tensor(
      file_, parameter.name,
      fmt::format("has shape {}, the model has {}{}", shape, wanted,
                  transposed ? ": it seems transposed, as nanoGPT's weights are for GPT-2; transpose the "
                               "weights of all linear layers of blocks, also the square ones, whose shape "
                               "does not show it"
                             : ""));
}

InputError WeightsFile::differs_from_tied(const SavedTensor& tensor) const {
  return bad_tensor(file_, tensor.equal_to,
                    fmt::format("is not equal to {}; set model.tied: false", tensor.from));
}

void WeightsFile::read(const Parameter& parameter, std::span<float> values) {
  const SavedTensor& tensor = tensors_.at(parameter.name);
  InFile& in_file = in_file_.at(tensor.from);
  const std::size_t there = count_of(in_file.shape);
  parameter.piece.for_each_run(parameter.size(), [&](std::size_t from, std::size_t to, std::size_t count) {
    const std::span<float> run = values.subspan(to, count);
    const std::size_t read = from < there ? std::min(count, there - from) : 0;
    for_each_part(read, [&](std::size_t at, std::size_t size) {
      read_part(parameter.name, tensor, from + at, run.subspan(at, size));
    });
    if (read < count) add_rows(in_file, from + read, run.subspan(read));
  });
}

void WeightsFile::read(const ParameterSet& set, std::span<float> values) {
  for (const Parameter& parameter : set.parameters) {
    read(parameter, values.first(parameter.size()));
    values = values.subspan(parameter.size());
  }
}

// Reads numbers that lie in the file, from the tensor's number `first` on.
void WeightsFile::read_part(const std::string& parameter, const SavedTensor& tensor, std::size_t first,
                            std::span<float> values) {
  const InFile& in_file = in_file_.at(tensor.from);
  in_file.reader->read(in_file.name, first, values);
  // The first step would fail, or train nothing.
  const auto bad = std::ranges::find_if_not(values, [](float value) { return std::isfinite(value); });
  if (bad != values.end()) {
    throw bad_tensor(file_, parameter,
                     fmt::format("value {} is {}", first + static_cast<std::size_t>(bad - values.begin()),
                                 std::isnan(*bad) ? "NaN" : "infinity"));
  }
  if (tensor.equal_to.empty()) return;
  const InFile& other = in_file_.at(tensor.equal_to);
  std::vector<float> equal(values.size());
  other.reader->read(other.name, first, equal);
  if (!std::ranges::equal(values, equal)) throw differs_from_tied(tensor);
}

// Writes rows of tokens that the table does not have. Each is the mean of its rows, so an output projection
// with this table gives a new token the mean of the other logits. This raises the cross-entropy of other
// tokens by at most log(rows / n) (J. Hewitt, "Initializing New Word Embeddings for Pretrained Language
// Models", 2021). With rows of zeros the new tokens would be the likeliest, since GPT-2's logits are far
// below 0. `first`: the place of the first number in the longer table.
void WeightsFile::add_rows(InFile& table, std::size_t first, std::span<float> values) {
  const std::size_t columns = table.shape.back();
  if (table.mean_row.empty()) {
    const std::size_t size = count_of(table.shape);
    std::vector<double> sums(columns);
    std::vector<float> part(std::min(size, max_part));
    for_each_part(size, [&](std::size_t at, std::size_t count) {
      table.reader->read(table.name, at, std::span(part).first(count));
      for (std::size_t i = 0; i < count; ++i) sums[(at + i) % columns] += static_cast<double>(part[i]);
    });
    const auto rows = static_cast<double>(table.shape.front());
    for (const double sum : sums) table.mean_row.push_back(static_cast<float>(sum / rows));
  }
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = table.mean_row[(first + i) % columns];
}

std::uint64_t WeightsFile::place() const {
  std::uint64_t hash = hash_start;
  for (const std::filesystem::path& path : paths_) {
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) continue;
    // Not the number of the device: a shared folder has another one on each host.
    for (const auto number : {std::uint64_t{status.st_ino}, static_cast<std::uint64_t>(status.st_size),
                              static_cast<std::uint64_t>(status.st_mtim.tv_sec),
                              static_cast<std::uint64_t>(status.st_mtim.tv_nsec)})
      hash = hash_of(number, hash);
  }
  return hash;
}

std::uint64_t WeightsFile::digest() {
  std::uint64_t hash = hash_start;
  std::vector<float> part;
  for (const auto& [name, in_file] : in_file_) {
    const InFile& tensor = in_file;
    hash = hash_of(std::string_view(name), hash);
    for (const std::size_t extent : tensor.shape) hash = hash_of(std::uint64_t{extent}, hash);
    for_each_part(count_of(tensor.shape), [&](std::size_t at, std::size_t count) {
      part.resize(count);
      tensor.reader->read(tensor.name, at, part);
      for (const float value : part) hash = hash_of(std::uint64_t{std::bit_cast<std::uint32_t>(value)}, hash);
    });
  }
  return hash;
}

}  // namespace starpipe::model
