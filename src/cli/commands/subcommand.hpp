// SPDX-License-Identifier: Apache-2.0
// Includes and functions that every source of a subcommand uses.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "cli/options/options.hpp"
#include "plan/formats/json_value.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::cli {

/// The work of the chosen subcommand, called once the whole command line has been parsed. Returns the exit
/// code. Throws InputError for bad input.
using Action = std::function<int()>;

/// What a subcommand does when a launcher (mpiexec, srun) starts it several times.
enum class Ranks : std::uint8_t {
  alone,   ///< each process does all of the work, with its own options and outputs, as any program does
  all,     ///< the processes work together, and rank 0 prints what all of them would
  watched  ///< the same, and a parent watches over each process, also without a launcher: watch_over_rank
};

// Each adds the subcommand of its name to `app`, from the source of this name. Parsing a command line that
// chooses the subcommand sets `action`.
void add_train(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_evaluate(CLI::App& app, Action& action);
void add_explain(CLI::App& app, Action& action);
void add_report(CLI::App& app, Action& action);
void add_compare(CLI::App& app, Action& action);
void add_sweep(CLI::App& app, Action& action);
void add_simulate(CLI::App& app, Action& action);
void add_sim(CLI::App& app, Action& action);
void add_schedule(CLI::App& app, Action& action);
void add_plugin(CLI::App& app, Action& action);
void add_search(CLI::App& app, Action& action);
void add_partition(CLI::App& app, Action& action);
void add_profile(CLI::App& app, Action& action);
void add_periodic(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);

/// Adds `schedule compare` to `schedule`, which is a subcommand of its own with subcommands below it.
void add_schedule_compare(CLI::App& schedule, Action& action);

/// Adds all subcommands to `app`. The result does the work of the one that the parsed command line chooses.
Action add_subcommands(CLI::App& app);

/// Returns what the subcommand of the parsed command line does under a launcher.
Ranks ranks_of(const CLI::App& app);

/// True if this process prints help and bad input. False on ranks other than 0 of a subcommand whose ranks
/// work together: rank 0 prints the same.
bool prints_usage(const CLI::App& app);

}  // namespace starpipe::cli
