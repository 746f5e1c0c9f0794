// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::cli {

/// What things cost: --durations, --comm, --no-prefetch.
class CostOptions {
 public:
  void add_to(CLI::App& command, const std::string& default_durations);
  /// Replaces what was given. Throws InputError, naming the option or the file, for what cannot be.
  void apply(plan::Costs& costs, int stages) const;

 private:
  std::optional<std::string> durations_;
  std::optional<double> comm_;
  bool no_prefetch_ = false;
};

}  // namespace starpipe::cli
