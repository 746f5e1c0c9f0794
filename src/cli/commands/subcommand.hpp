// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include <CLI/CLI.hpp>

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

/// A subcommand of `starpipe`. Each source file in this folder defines one and registers it.
struct Subcommand {
  int position;  ///< in `starpipe --help`, smallest first
  /// Adds the subcommand to `app`. Parsing a command line that chooses it sets `action`.
  void (*add)(CLI::App& app, Action& action);
  Ranks ranks = Ranks::alone;
};

/// Registers a subcommand before main() begins. Returns true, so that it can initialise a constant.
bool register_subcommand(Subcommand subcommand);

/// Adds `schedule compare` to `schedule`, which is a subcommand of its own with subcommands below it.
void add_schedule_compare(CLI::App& schedule, Action& action);

/// Adds all registered subcommands to `app`, in the order of their positions. The result does the work of the
/// one that the parsed command line chooses.
Action add_subcommands(CLI::App& app);

/// Returns what the subcommand of the parsed command line does under a launcher.
Ranks ranks_of(const CLI::App& app);

/// True if this process prints help and bad input. False on ranks other than 0 of a subcommand whose ranks
/// work together: rank 0 prints the same.
bool prints_usage(const CLI::App& app);

}  // namespace starpipe::cli
