// SPDX-License-Identifier: Apache-2.0
#pragma once

// Options that several subcommands share.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::cli {

/// A configuration file, and what the command line changes in it: CONFIG.yaml, --set, --plugin.
class ConfigOptions {
 public:
  /// Returns the option that is the file, for others to depend on.
  CLI::Option* add_to(CLI::App& command, bool required = true);
  /// As `load_config` reads it.
  [[nodiscard]] runtime::Config load() const;

 private:
  std::string file_;
  std::vector<std::string> overrides_;
  std::vector<std::string> plugins_;
};

/// --plugin, as often as one likes.
void add_plugin_option(CLI::App& command, std::vector<std::string>& files);
/// Adds what they have to the registry. Throws InputError naming the file that is none.
void load_plugins(const std::vector<std::string>& files);

/// --workers and --microbatches, both required, and the most that there may be of each.
void add_size_options(CLI::App& command, int& workers, int most_workers, int& microbatches,
                      int most_microbatches);

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

/// Where and how a run is shown: --format, --json, -o.
class ResultOptions {
 public:
  void add_to(CLI::App& command);
  /// Before the work is done: throws InputError when the file could not be written.
  void check() const;
  /// `text`: what the text format shows.
  void show(const plan::Schedule& schedule, const plan::Costs& costs, const plan::Timeline& timeline,
            const std::function<std::string()>& text) const;
  /// `more`: what the JSON format has besides, an object.
  void show(const plan::Schedule& schedule, const plan::Costs& costs, const plan::Timeline& timeline,
            const std::function<std::string()>& text, const nlohmann::ordered_json& more) const;

 private:
  [[nodiscard]] std::string format() const;

  std::optional<std::string> format_;
  bool json_ = false;
  std::optional<std::string> file_;
};

/// The predicted run as an SVG image; `unit` is that of its times.
std::string predicted_svg(const plan::Schedule& schedule, const plan::Timeline& timeline);
/// The predicted run as a Chrome trace, in which a unit of time is shown as a second.
std::string predicted_trace(const plan::Schedule& schedule, const plan::Timeline& timeline);

/// Drawing and table, as wide and colourful as the terminal allows unless they go to a file.
std::string drawn(const plan::Schedule& schedule, const plan::Timeline& timeline);

}  // namespace starpipe::cli
