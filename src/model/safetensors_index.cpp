// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors_index.hpp"

#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "starpipe/base/error.hpp"
#include "base/files.hpp"

namespace starpipe::model {

bool is_safetensors_index(const std::filesystem::path& file) { return suffix_of(file) == ".json"; }

std::map<std::filesystem::path, std::set<std::string>> read_safetensors_index(
    const std::filesystem::path& index) {
  using Json = nlohmann::json;
  std::error_code error;
  if (!std::filesystem::is_regular_file(index, error) && !error)
    throw InputError(fmt::format("{}: is not a file", index.string()));  // a pipe can be read once
  const Json json = Json::parse(read_file(index), nullptr, false);
  const auto names = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || names == json.end() || !names->is_object() || names->empty()) {
    throw InputError(
        fmt::format("{}: is no index of safetensors files: it has no \"weight_map\"", index.string()));
  }
  std::map<std::filesystem::path, std::set<std::string>> files;
  for (const auto& [tensor, value] : names->items()) {
    const std::filesystem::path file = value.is_string() ? value.get<std::string>() : std::string();
    if (file.empty() || file != file.filename() || file == "." || file == "..") {
      throw InputError(fmt::format("{}: tensor {}: {} is not the name of a file beside the index",
                                   index.string(), tensor, value.dump(-1, ' ', true)));
    }
    files[index.parent_path() / file].insert(tensor);
  }
  return files;
}

}  // namespace starpipe::model
