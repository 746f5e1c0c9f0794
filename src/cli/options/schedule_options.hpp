// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <CLI/CLI.hpp>

#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::cli {

inline constexpr int most_workers = 1 << 16;
inline constexpr int most_microbatches = 1 << 20;
inline constexpr int most_stages = 1 << 16;

/// Throws InputError for schedules so large that memory would end before anything is printed. `stages`: of
/// all of them.
void require_few_jobs(std::int64_t stages, std::int64_t microbatches);

/// Adds --option NAME=VALUE, which may be repeated, for the options of a schedule.
void add_schedule_option(CLI::App& command, plan::ScheduleOptions& options);

/// Adds --memory-limit and --recompute.
void add_memory_options(CLI::App& command, std::vector<int>& memory_limits, bool& recompute);

}  // namespace starpipe::cli
