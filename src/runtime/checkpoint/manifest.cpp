// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <zlib.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::string_view manifest_format = "starpipe checkpoint";
constexpr std::int64_t manifest_version = 1;  // raise it when an older starpipe would read the files wrongly

// A manifest of any version ends with the checksum of all bytes before this ending.
constexpr std::string_view before_checksum = ",\n \"crc32\": \"";
constexpr std::string_view after_checksum = "\"\n}\n";

std::string with_checksum(std::string_view begin) {
  return fmt::format("{}{}{}{}", begin, before_checksum, checksum_text(checksum_of(begin, checksum_start)),
                     after_checksum);
}

/// Parses a text. Throws InputError if values are nested more deeply than any that starpipe writes: the JSON
/// library copies and prints nested values by recursion.
Json parse_json(const std::string& text) {
  static constexpr int max_levels = 100;
  const auto check = [](int depth, Json::parse_event_t /*event*/, const Json& /*value*/) {
    if (depth > max_levels) throw InputError(fmt::format("is nested more than {} levels deep", max_levels));
    return true;
  };
  return Json::parse(text, check, false);
}

/// Returns the value of a key. Throws InputError if the JSON has none of this type.
template <class Value>
Value value_of(const Json& json, const char* key, bool (Json::*has_type)() const noexcept) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (!json.is_object() || found == json.end() || !((*found).*has_type)()) {
    throw InputError(fmt::format("has no valid \"{}\"", key));
  }
  return found->get<Value>();
}

std::uint32_t checksum_value(const Json& json) {
  const auto text = value_of<std::string>(json, "crc32", &Json::is_string);
  std::uint32_t checksum = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), checksum, 16);
  if (error != std::errc() || text.size() != 8 || end != text.data() + text.size())
    throw InputError("has no valid \"crc32\"");
  return checksum;
}

model::TensorShape tensor_from_json(const Json& json) {
  model::TensorShape tensor;
  tensor.name = value_of<std::string>(json, "name", &Json::is_string);
  for (const Json& extent : value_of<Json>(json, "shape", &Json::is_array)) {
    if (!extent.is_number_unsigned()) throw InputError("has no valid \"shape\"");
    tensor.shape.push_back(extent.get<std::size_t>());
  }
  return tensor;
}

bool is_plain_name(const std::string& file) {
  return !file.empty() && file != "." && file != ".." && file.find('/') == std::string::npos &&
         file.find('\0') == std::string::npos;
}

/// Returns the first reason why parts cannot be one checkpoint; an empty string if there is none.
std::string problem_of(const std::vector<PartRecord>& parts) {
  std::set<std::string> files;
  std::set<std::string> tensors;
  for (const PartRecord& part : parts) {
    if (!is_plain_name(part.file))
      return fmt::format("names the file \"{}\", which is not a plain name", part.file);
    if (!files.insert(part.file).second) return fmt::format("has the file {} twice", part.file);
    for (const model::TensorShape& tensor : part.tensors) {
      if (!tensors.insert(tensor.name).second) return fmt::format("has the tensor {} twice", tensor.name);
    }
  }
  return {};
}

}  // namespace

Json part_to_json(const PartRecord& part) {
  Json tensors = Json::array();
  for (const auto& [name, shape] : part.tensors) tensors.push_back({{"name", name}, {"shape", shape}});
  return {{"file", part.file},
          {"bytes", part.bytes},
          {"crc32", checksum_text(part.checksum)},
          {"tensors", std::move(tensors)}};
}

PartRecord part_from_json(const Json& json) {
  PartRecord part;
  part.file = value_of<std::string>(json, "file", &Json::is_string);
  part.bytes = value_of<std::uint64_t>(json, "bytes", &Json::is_number_unsigned);
  part.checksum = checksum_value(json);
  for (const Json& tensor : value_of<Json>(json, "tensors", &Json::is_array)) {
    part.tensors.push_back(tensor_from_json(tensor));
  }
  return part;
}

std::string manifest_text(const Manifest& manifest) {
  if (manifest.step < 0) throw std::invalid_argument("checkpoint: the step is negative");
  if (const std::string problem = problem_of(manifest.parts); !problem.empty()) {
    throw std::invalid_argument("checkpoint: " + problem);
  }
  Json parts = Json::array();
  for (const PartRecord& part : manifest.parts) parts.push_back(part_to_json(part));
  const Json content = {{"format", manifest_format},
                        {"version", manifest_version},
                        {"step", static_cast<std::uint64_t>(manifest.step)},
                        {"run", manifest.run},
                        {"parts", std::move(parts)}};
  const std::string text = content.dump(1, ' ', false, Json::error_handler_t::replace);
  return with_checksum(std::string_view(text).substr(0, text.size() - std::string_view("\n}").size()));
}

Manifest parse_manifest(const std::string& text) {
  constexpr std::size_t ending = before_checksum.size() + 8 + after_checksum.size();
  if (text.size() < ending || with_checksum(std::string_view(text).substr(0, text.size() - ending)) != text) {
    throw InputError("is damaged: it does not end with the checksum of its content");
  }
  Json json = parse_json(text);
  if (!json.is_object() || value_of<std::string>(json, "format", &Json::is_string) != manifest_format) {
    throw InputError("is not of a starpipe checkpoint");
  }
  const auto version = value_of<std::int64_t>(json, "version", &Json::is_number_integer);
  if (version != manifest_version) {
    throw InputError(fmt::format("has version {} of the format; this starpipe reads version {}", version,
                                 manifest_version));
  }

  Manifest manifest;
  const auto step = value_of<std::uint64_t>(json, "step", &Json::is_number_unsigned);
  if (step > static_cast<std::uint64_t>(INT64_MAX)) throw InputError("has no valid \"step\"");
  manifest.step = static_cast<std::int64_t>(step);
  if (!json.contains("run")) throw InputError("has no valid \"run\"");
  manifest.run = std::move(json["run"]);
  for (const Json& part : value_of<Json>(json, "parts", &Json::is_array)) {
    manifest.parts.push_back(part_from_json(part));
  }
  if (const std::string problem = problem_of(manifest.parts); !problem.empty()) throw InputError(problem);
  return manifest;
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view step_prefix = "step-";
constexpr std::string_view writing_ending = ".writing";
constexpr std::string_view removing_ending = ".removing";

std::string step_name(std::int64_t step) { return fmt::format("{}{:08}", step_prefix, step); }

/// Takes a whole number, at least 0, from the beginning of `text`.
template <class Number>
std::optional<Number> take_number(std::string_view& text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || text.front() == '-') return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

/// Returns the step and the generation in a checkpoint's name; nullopt for any other name.
std::optional<CheckpointDirectory> parse_name(std::string_view text, const fs::path& path) {
  if (!text.starts_with(step_prefix)) return {};
  text.remove_prefix(step_prefix.size());
  const auto step = take_number<std::int64_t>(text);
  if (!step) return {};
  CheckpointDirectory directory{*step, 1, path};
  if (!text.empty()) {
    if (text.front() != '.') return {};
    text.remove_prefix(1);
    const auto generation = take_number<int>(text);
    if (!generation || !text.empty()) return {};
    directory.generation = *generation;
  }
  return directory;
}

}  // namespace

fs::path writing_directory(const fs::path& folder, std::int64_t step) {
  return folder / (step_name(step) + std::string(writing_ending));
}

fs::path removing_directory(const fs::path& checkpoint) {
  fs::path path = checkpoint;
  return path += removing_ending;
}

fs::path free_directory(const fs::path& folder, std::int64_t step, const std::string& ending) {
  const fs::path first = folder / (step_name(step) + ending);
  fs::path path = first;
  for (int generation = 2; fs::exists(fs::symlink_status(path)); ++generation) {
    path = first;
    path += fmt::format(".{}", generation);
  }
  return path;
}

std::string part_name(int rank) { return fmt::format("rank-{:04}.safetensors", rank); }

FolderContent content_of(const fs::path& folder) {
  FolderContent content;
  std::error_code error;
  if (fs::status(folder, error).type() == fs::file_type::not_found) return content;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();  // perhaps of a link that leads nowhere now
    const std::string name = path.filename().string();
    if (const auto checkpoint = parse_name(name, path)) content.checkpoints.push_back(*checkpoint);
    for (const std::string_view ending : {writing_ending, removing_ending}) {
      if (!name.ends_with(ending)) continue;
      const auto begin = std::string_view(name).substr(0, name.size() - ending.size());
      if (const auto unfinished = parse_name(begin, path)) content.unfinished.push_back(*unfinished);
    }
  }
  if (error) throw InputError(fmt::format("{}: cannot be read: {}", folder.string(), error.message()));
  std::ranges::sort(content.checkpoints, std::greater());
  std::ranges::sort(content.unfinished);
  return content;
}

std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t checksum) {
  if (bytes.empty()) return checksum;  // zlib takes a null pointer for a request of the start value
  return static_cast<std::uint32_t>(
      crc32_z(checksum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::uint32_t checksum_of(std::string_view text, std::uint32_t checksum) {
  return checksum_of(std::as_bytes(std::span(text)), checksum);
}

std::string checksum_text(std::uint32_t checksum) { return fmt::format("{:08x}", checksum); }

}  // namespace starpipe::runtime
