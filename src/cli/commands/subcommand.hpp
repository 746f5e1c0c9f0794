// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include <CLI/CLI.hpp>

namespace starpipe::cli {

/// The work of the chosen subcommand, called once the whole command line has been parsed. Returns the exit
/// code. Throws InputError for bad input.
using Action = std::function<int()>;

/// The ranks of an MPI launcher (mpiexec, srun) on which a subcommand works.
enum class Ranks : std::uint8_t {
  first,  ///< rank 0; the others end at once with status 0, so that results are printed and written once
  all
};

/// A subcommand of `starpipe`. Each source file in this folder defines one and registers it.
struct Subcommand {
  int position;  ///< in `starpipe --help`, smallest first
  /// Adds the subcommand to `app`. Parsing a command line that chooses it sets `action`.
  void (*add)(CLI::App& app, Action& action);
  Ranks ranks = Ranks::first;
};

/// Registers a subcommand before main() begins. Returns true, so that it can initialise a constant.
bool register_subcommand(Subcommand subcommand);

/// Adds all registered subcommands to `app`, in the order of their positions. The result does the work of the
/// one that the parsed command line chooses.
Action add_subcommands(CLI::App& app);

}  // namespace starpipe::cli
