// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::cli {

/// Costs of passes and transfers: --durations, --comm, --no-prefetch.
class CostOptions {
 public:
  /// `default_durations`, `default_comm`: the costs without --durations and --comm, for the help.
  void add_to(CLI::App& command, const std::string& default_durations, const std::string& default_comm = "0");
  /// Replaces the costs that were given on the command line. Throws InputError naming the option or the file.
  void apply(plan::Costs& costs, int stages) const;
  /// Whether --durations was given.
  [[nodiscard]] bool gives_durations() const { return durations_.has_value(); }

 private:
  std::optional<std::string> durations_;
  std::optional<double> comm_;
  bool no_prefetch_ = false;
};

}  // namespace starpipe::cli
