// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::cli {

/// Costs of passes and transfers: --durations, --comm, and where it is added --no-prefetch.
class CostOptions {
 public:
  /// `default_durations`, `default_comm`: the costs without --durations and --comm, for the help.
  void add_to(CLI::App& command, const std::string& default_durations, const std::string& default_comm = "0");
  void add_no_prefetch_to(CLI::App& command);
  /// Replaces the costs that were given on the command line. `unit`, of all times of the costs, becomes "s"
  /// when they were given with units, and empty when without. Throws InputError naming the option or the
  /// file, also when only some times have a unit.
  void apply(plan::Costs& costs, std::string& unit, int stages) const;
  /// The file that --durations names; empty when it names none.
  [[nodiscard]] std::filesystem::path file() const;
  /// Whether --durations was given.
  [[nodiscard]] bool gives_durations() const { return durations_.has_value(); }

 private:
  /// Whether --durations has the times themselves and not the name of a file.
  [[nodiscard]] bool is_inline() const;

  std::optional<std::string> durations_;
  std::optional<std::string> comm_;
  bool no_prefetch_ = false;
};

}  // namespace starpipe::cli
