// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "cli/commands/subcommand.hpp"

namespace starpipe::cli {

/// Adds `schedule compare`: several schedules, at several numbers of micro-batches, predicted side by side.
void add_schedule_compare(CLI::App& schedule, Action& action);

}  // namespace starpipe::cli
