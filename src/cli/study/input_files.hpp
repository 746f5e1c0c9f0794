// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

namespace starpipe::cli {

/// The files that runs of a study read. A run depends on their contents, and not on their names alone.
class InputFiles {
 public:
  /// Larger files are known by their size, since reading the training data of every study would take too
  /// long.
  static constexpr std::uintmax_t most_read_bytes = 16U << 20U;

  /// A value that changes with the contents of these files. Names that are no regular files are left out.
  nlohmann::json marks(std::span<const std::filesystem::path> files);

 private:
  std::map<std::filesystem::path, nlohmann::json> known_;
};

}  // namespace starpipe::cli
