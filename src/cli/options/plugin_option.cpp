// SPDX-License-Identifier: Apache-2.0
#include "cli/options/plugin_option.hpp"

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::cli {

void require_schedules(const std::string& file, const std::vector<std::string>& schedules) {
  if (schedules.empty()) throw InputError(fmt::format("plug-in {}: it adds no schedule", file));
}

CLI::Option* add_plugin_option(CLI::App& command, std::vector<std::string>& files) {
  return command
      .add_option(
          "--plugin", files,
          "Plug-in (shared object) that adds schedules or networks; may be repeated. Where the command or "
          "the configuration names a schedule, each plug-in must have it or the configuration's network")
      ->type_name("FILE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void load_plugins(const std::vector<std::string>& files) {
  for (const std::string& file : files) require_schedules(file, plan::load_plugin(file));
}

}  // namespace starpipe::cli
