// SPDX-License-Identifier: Apache-2.0
#include "cli/options/plugin_option.hpp"

#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::cli {

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
  for (const std::string& file : files) plan::load_plugin(file);
}

}  // namespace starpipe::cli
