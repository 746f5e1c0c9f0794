// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/manifest.hpp"

#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "runtime/checkpoint/checksum.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::string_view manifest_format = "starpipe checkpoint";
constexpr std::int64_t manifest_version = 1;  // raise it when an older starpipe would read the files wrongly

// A manifest ends with its checksum: that of all bytes before this ending. Every version of the format has
// it.
constexpr std::string_view before_checksum = ",\n \"crc32\": \"";
constexpr std::string_view after_checksum = "\"\n}\n";

std::string with_checksum(std::string_view begin) {
  return fmt::format("{}{}{}{}", begin, before_checksum, checksum_text(checksum_of(begin, checksum_start)),
                     after_checksum);
}

/// Throws InputError when values are nested more deeply than any that starpipe writes: the JSON library
/// copies and prints nested values by recursion.
Json parse_json(const std::string& text) {
  static constexpr int most_levels = 100;
  const auto check = [](int depth, Json::parse_event_t /*event*/, const Json& /*value*/) {
    if (depth > most_levels) throw InputError(fmt::format("is nested more than {} levels deep", most_levels));
    return true;
  };
  return Json::parse(text, check, false);
}

/// The value of a key. Throws InputError when the JSON has none of this type.
template <class Value>
Value value_of(const Json& json, const char* key, bool (Json::*has_type)() const noexcept) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  if (!json.is_object() || found == json.end() || !((*found).*has_type)()) {
    throw InputError(fmt::format("has no valid \"{}\"", key));
  }
  return found->get<Value>();
}

std::uint32_t checksum_value(const Json& json) {
  const auto checksum = parse_checksum(value_of<std::string>(json, "crc32", &Json::is_string));
  if (!checksum) throw InputError("has no valid \"crc32\"");
  return *checksum;
}

TensorRecord tensor_from_json(const Json& json) {
  TensorRecord tensor;
  tensor.name = value_of<std::string>(json, "name", &Json::is_string);
  for (const Json& extent : value_of<Json>(json, "shape", &Json::is_array)) {
    if (!extent.is_number_unsigned()) throw InputError("has no valid \"shape\"");
    tensor.shape.push_back(extent.get<std::size_t>());
  }
  tensor.checksum = checksum_value(json);
  return tensor;
}

bool is_plain_name(const std::string& file) {
  return !file.empty() && file != "." && file != ".." && file.find('/') == std::string::npos &&
         file.find('\0') == std::string::npos;
}

/// The first thing that keeps parts from being one checkpoint; empty when there is none.
std::string problem_of(const std::vector<PartRecord>& parts) {
  std::set<std::string> files;
  std::set<std::string> tensors;
  for (const PartRecord& part : parts) {
    if (!is_plain_name(part.file))
      return fmt::format("names the file \"{}\", which is no plain name", part.file);
    if (!files.insert(part.file).second) return fmt::format("has the file {} twice", part.file);
    for (const TensorRecord& tensor : part.tensors) {
      if (!tensors.insert(tensor.name).second) return fmt::format("has the tensor {} twice", tensor.name);
    }
  }
  return {};
}

}  // namespace

Json part_to_json(const PartRecord& part) {
  Json tensors = Json::array();
  for (const TensorRecord& tensor : part.tensors) {
    tensors.push_back(
        {{"name", tensor.name}, {"shape", tensor.shape}, {"crc32", checksum_text(tensor.checksum)}});
  }
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

}  // namespace starpipe::runtime
