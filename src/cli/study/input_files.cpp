// SPDX-License-Identifier: Apache-2.0
#include "cli/study/input_files.hpp"

#include <system_error>

#include "base/files.hpp"
#include "starpipe/base/hash.hpp"

namespace starpipe::cli {

nlohmann::json InputFiles::marks(std::span<const std::filesystem::path> files) {
  nlohmann::json all = nlohmann::json::array();
  std::error_code error;
  for (const std::filesystem::path& file : files) {
    if (!std::filesystem::is_regular_file(file, error)) continue;
    const auto [known, is_new] = known_.try_emplace(file);
    if (is_new) {
      const std::uintmax_t bytes = std::filesystem::file_size(file);
      known->second = {bytes, bytes <= most_read_bytes ? hash_of(read_file(file), hash_start) : 0};
    }
    all.push_back(known->second);
  }
  return all;
}

}  // namespace starpipe::cli
