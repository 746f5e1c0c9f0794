// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace starpipe::cli {

/// --plugin, as often as one likes.
void add_plugin_option(CLI::App& command, std::vector<std::string>& files);
/// Adds what they have to the registry. Throws InputError naming the file that is none.
void load_plugins(const std::vector<std::string>& files);

}  // namespace starpipe::cli
