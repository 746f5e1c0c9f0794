// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace starpipe::cli {

/// What the chosen subcommand does once the whole command line is known to be right; returns the exit
/// code. Throws InputError for bad input.
using Action = std::function<int()>;

// Each adds one subcommand, which sets `action` when it is the one chosen.
void add_train(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_simulate(CLI::App& app, Action& action);
void add_schedule(CLI::App& app, Action& action);
void add_plugin(CLI::App& app, Action& action);
void add_search(CLI::App& app, Action& action);
void add_partition(CLI::App& app, Action& action);
void add_profile(CLI::App& app, Action& action);
void add_periodic(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);

}  // namespace starpipe::cli
