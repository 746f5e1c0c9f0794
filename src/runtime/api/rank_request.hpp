// SPDX-License-Identifier: Apache-2.0
// What a rank was asked to do. A launcher can start each rank with a command line of its own; a run in which
// they differ would train something that nobody asked for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/host/mpi.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// A command and its options, with the names that the command line has for them.
class RankRequest {
 public:
  explicit RankRequest(std::string command) { values_.emplace_back("command", std::move(command)); }

  void add(std::string option, std::string value) {
    values_.emplace_back(std::move(option), std::move(value));
  }
  /// A file that was not asked for adds nothing.
  void add(std::string option, const std::optional<std::filesystem::path>& file) {
    if (file) add(std::move(option), file->string());
  }
  /// The option of a flag that was not given adds nothing.
  void add_flag(std::string option, bool given) {
    if (given) add(std::move(option), std::string("true"));
  }

  /// Collective. Throws InputError on every rank when not all have the same command, options and
  /// configurations. The message names the first option or key that differs, and its values.
  void require_same(const Mpi& mpi, const std::vector<Config>& configs) const;

 private:
  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace starpipe::runtime
