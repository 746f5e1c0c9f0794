// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// A configuration file and its changes on the command line: CONFIG.yaml, --set, and where it is added
/// --plugin.
class ConfigOptions {
 public:
  /// Returns the option of the file, so that other options can depend on it.
  CLI::Option* add_to(CLI::App& command, bool required = true);
  /// Call after `add_to`, for commands that make the configured schedule.
  void add_plugin_to(CLI::App& command);
  /// The configuration with its changes. Throws InputError as `load_config` does, and for a plug-in of
  /// --plugin that has none of the schedules that run. `schedules`: those that run instead of the configured
  /// one. STARPU_SCHED chooses the policy before the file does, as StarPU's users expect. Throws InputError
  /// when it contradicts the command line (--set).
  [[nodiscard]] runtime::Config load(const std::vector<std::string>& schedules = {}) const;
  /// As `--set KEY=VALUE`, for an option of its own, `option`. Throws InputError when --set gives the key,
  /// too.
  void set(const std::string& key, const std::string& value, std::string_view option);
  /// As they were given on the command line, for a program that loads the same configuration.
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::vector<std::string>& all_overrides() const { return overrides_; }
  [[nodiscard]] const std::vector<std::string>& plugins() const { return plugins_; }
  /// True if --set gives this key.
  [[nodiscard]] bool overrides(const std::string& key) const;
  /// Throws InputError when --set gives one of these keys, or a key of one of these sections, which have no
  /// effect in the command.
  void refuse_overrides(std::string_view command, std::span<const std::string_view> unused) const;

 private:
  void check_policy(const runtime::Config& config) const;

  std::string file_;
  std::vector<std::string> overrides_;
  std::vector<std::string> plugins_;
};

/// Throws InputError for a `runtime.policy`, which `compare` does not run: it has --policies.
void refuse_policy_in_compare(const runtime::Config& config);

}  // namespace starpipe::cli
