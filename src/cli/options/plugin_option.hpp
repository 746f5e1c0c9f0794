// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace starpipe::cli {

/// Throws InputError for a plug-in that adds no schedule, only layers or networks. `schedules`: its
/// schedules.
void require_schedules(const std::string& file, const std::vector<std::string>& schedules);

/// Adds --plugin, which may be repeated, and returns it.
CLI::Option* add_plugin_option(CLI::App& command, std::vector<std::string>& files);
/// For commands that use all schedules: adds those of the plug-ins to the registry. Throws InputError naming
/// a file that is not a plug-in, or adds no schedule.
void load_plugins(const std::vector<std::string>& files);

}  // namespace starpipe::cli
