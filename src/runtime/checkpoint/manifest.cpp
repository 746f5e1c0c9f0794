// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <regex>
#include <set>
#include <stdexcept>
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

/// Returns the value of a key. Throws InputError if the JSON has none that is written as this type is:
/// not 2.0 or -2 for an unsigned number.
template <class Value>
Value value_of(const Json& json, const char* key) {
  try {
    auto value = json.at(key).get<Value>();
    if (Json(value).dump() == json.at(key).dump()) return value;
  } catch (const Json::exception&) {  // there is no such key, or another type
  }
  throw InputError(fmt::format("has no valid \"{}\"", key));
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
  PartRecord part = {.file = value_of<std::string>(json, "file"),
                     .bytes = value_of<std::uint64_t>(json, "bytes"),
                     .tensors = {}};
  const auto checksum = value_of<std::string>(json, "crc32");
  std::from_chars(checksum.data(), checksum.data() + checksum.size(), part.checksum, 16);
  if (checksum_text(part.checksum) != checksum) throw InputError("has no valid \"crc32\"");
  for (const Json& tensor : value_of<std::vector<Json>>(json, "tensors")) {
    part.tensors.push_back({.name = value_of<std::string>(tensor, "name"),
                            .shape = value_of<std::vector<std::size_t>>(tensor, "shape")});
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
  const Json json = parse_json(text);
  if (!json.is_object() || value_of<std::string>(json, "format") != manifest_format) {
    throw InputError("is not of a starpipe checkpoint");
  }
  const auto version = value_of<std::int64_t>(json, "version");
  if (version != manifest_version) {
    throw InputError(fmt::format("has version {} of the format; this starpipe reads version {}", version,
                                 manifest_version));
  }

  Manifest manifest = {
      .step = value_of<std::int64_t>(json, "step"), .run = value_of<Json>(json, "run"), .parts = {}};
  if (manifest.step < 0) throw InputError("has no valid \"step\"");
  for (const Json& part : value_of<std::vector<Json>>(json, "parts"))
    manifest.parts.push_back(part_from_json(part));
  if (const std::string problem = problem_of(manifest.parts); !problem.empty()) throw InputError(problem);
  return manifest;
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view writing_ending = ".writing";
constexpr std::string_view removing_ending = ".removing";

std::string step_name(std::int64_t step) { return fmt::format("step-{:08}", step); }

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
  // The step, the generation, and the ending of a directory that is being written or removed.
  static const std::regex directory_name(R"(step-(\d{1,18})(?:\.(\d{1,9}))?(\.writing|\.removing)?)");
  FolderContent content;
  std::error_code error;
  if (fs::status(folder, error).type() == fs::file_type::not_found) return content;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();  // perhaps of a link that leads nowhere now
    std::smatch match;
    if (!std::regex_match(name, match, directory_name)) continue;
    const int generation = match[2].matched ? std::stoi(match[2]) : 1;
    (match[3].matched ? content.unfinished : content.checkpoints)
        .push_back({std::stoll(match[1]), generation, entry->path()});
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
