// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::cli {

/// Costs of passes and transfers: --durations, --comm or --links, and where they are added --bytes and
/// --no-prefetch.
class CostOptions {
 public:
  /// `default_durations`, `default_comm`: the costs without --durations and --comm, for the help.
  void add_to(CLI::App& command, const std::string& default_durations, const std::string& default_comm = "0");
  /// Only --durations, for commands that know the links.
  void add_durations_to(CLI::App& command, const std::string& default_durations);
  void add_no_prefetch_to(CLI::App& command);
  /// For commands that know no model, and so not how much its stages send each other.
  void add_bytes_to(CLI::App& command);
  /// Replaces the costs that the command line gives. `unit`, of all times of the costs, becomes "s" if they
  /// have units there, and empty if not. `device`: the kind of device, for a file with durations of several;
  /// empty if the caller knows none, and such a file is refused. Throws InputError naming the option or the
  /// file, also if only some times have a unit.
  void apply(plan::Costs& costs, std::string& unit, int stages, const std::string& device = {}) const;
  /// Prints a line on standard error if a run of the schedule `name` transfers data whose bytes --bytes does
  /// not give: these transfers have a latency only.
  void note_missing_bytes(const std::string& name, const plan::Timeline& timeline) const;
  /// Returns `others` and the files that --durations and --links name: what a command reads.
  [[nodiscard]] std::vector<std::filesystem::path> inputs(std::vector<std::filesystem::path> others) const;
  [[nodiscard]] std::vector<std::filesystem::path> inputs(const std::vector<std::string>& others) const {
    return inputs(std::vector<std::filesystem::path>(others.begin(), others.end()));
  }
  /// The files that --durations and --links name; empty where they name none.
  [[nodiscard]] std::array<std::filesystem::path, 2> files() const;
  /// True if --durations was given.
  [[nodiscard]] bool gives_durations() const { return durations_.has_value(); }

 private:
  /// True if --durations has the times themselves and not the name of a file.
  [[nodiscard]] bool is_inline() const;
  void apply_comm(plan::Costs& costs, const std::string& unit, const std::string& former_unit) const;
  void apply_links(plan::Costs& costs, const std::string& unit) const;

  std::optional<std::string> durations_;
  std::optional<std::string> comm_;
  std::optional<std::string> links_;
  std::optional<std::uint64_t> bytes_;
  bool needs_bytes_ = false;  ///< no model says how large results are
  bool no_prefetch_ = false;
};

}  // namespace starpipe::cli
