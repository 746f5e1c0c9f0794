// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "base/environment.hpp"
#include "cli/input/input_files.hpp"
#include "cli/options/options.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/host/lost_rank.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::cli {
namespace {

/// Each rank reads the inputs of a run. A pipe gives its content to one of them, and the others would wait.
void require_shared(const std::filesystem::path& file) {
  std::error_code error;
  const bool pipe = std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error) &&
                    !std::filesystem::is_directory(file, error);
  if (pipe && runtime::launcher_rank())
    throw InputError(
        fmt::format("{}: is not a file; under a launcher each rank reads it, and a pipe can be read once",
                    file.string()));
}

}  // namespace

CLI::Option* ConfigOptions::add_to(CLI::App& command, bool required) {
  CLI::Option* const config =
      add_option(command, "config CONFIG.yaml", file_, "Configuration file")->required(required);
  repeated(add_option(command, "--set KEY=VALUE", overrides_,
                      "Override a key of the configuration, such as training.steps=10; may be repeated, and "
                      "the last value of a key counts"))
      ->needs(config);
  command.set_version_flag(
      "--help-keys", [] { return runtime::describe_keys(runtime::config_keys()); },
      "Print the keys of a configuration, with their values and defaults, and exit");
  return config;
}

void ConfigOptions::add_plugin_to(CLI::App& command) {
  add_plugin_option(command, plugins_)->needs(command.get_option("config"));
}

runtime::Config ConfigOptions::load(const std::vector<std::string>& schedules) const {
  require_shared(file_);
  // First: the configuration may name a network of theirs.
  for (const std::string& file : plugins_) plan::load_plugin(file);
  runtime::Config config = load_config(file_, overrides_);
  check_policy(config);
  for (const std::filesystem::path& file : inputs_of(config)) require_shared(file);
  if (config.schedule.file) {
    plan::load_plugins_for(plugins_, {}, "--plugin, with schedule.file", config.model.kind);
    return config;
  }
  plan::load_plugins_for(plugins_, schedules.empty() ? std::vector{config.schedule.name} : schedules,
                         "--plugin", config.model.kind);
  std::vector<std::string>& plugins = config.schedule.plugins;
  plugins.insert(plugins.end(), plugins_.begin(), plugins_.end());
  return config;
}

void ConfigOptions::check_policy(const runtime::Config& config) const {
  const std::string policy = environment("STARPU_SCHED").value_or("");
  if (policy.empty() || policy == config.runtime.policy || !overrides("runtime.policy")) return;
  throw InputError(
      fmt::format("STARPU_SCHED: {} contradicts --set runtime.policy={}", policy, config.runtime.policy));
}

void ConfigOptions::set(const std::string& key, const std::string& value, std::string_view option) {
  if (overrides(key)) throw InputError(fmt::format("{}: --set gives {}, too", option, key));
  overrides_.push_back(fmt::format("{}={}", key, value));
}

bool ConfigOptions::overrides(const std::string& key) const {
  return overridden_keys(overrides_).contains(key);
}

void ConfigOptions::refuse_overrides(std::string_view command,
                                     std::span<const std::string_view> unused) const {
  for (const std::string& key : overridden_keys(overrides_)) {
    for (const std::string_view name : unused) {
      if (key == name || key.starts_with(fmt::format("{}.", name)))
        throw InputError(fmt::format("--set {}: does not apply to {}", key, command));
    }
  }
}

void refuse_policy_in_compare(const runtime::Config& config) {
  if (config.runtime.policy == runtime::RuntimeConfig().policy) return;
  throw InputError(fmt::format("runtime.policy: {}: compare runs the policies of --policies instead",
                               config.runtime.policy));
}

}  // namespace starpipe::cli
