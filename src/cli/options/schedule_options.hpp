// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::cli {

/// Adds --option NAME=VALUE, which may be repeated, for the options of a schedule.
void add_schedule_option(CLI::App& command, plan::ScheduleOptions& options,
                         const std::string& help =
                             "Option of the schedule, as `schedule list --long` shows them; may be repeated");

/// Adds --memory-limit and --recompute.
void add_memory_options(CLI::App& command, std::vector<int>& memory_limits, bool& recompute);

}  // namespace starpipe::cli
