// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "cli/study/study_runs.hpp"

namespace starpipe::cli {

/// A script for sbatch: an array of `tasks` tasks, each of which runs a block of the runs (--block). It asks
/// for as many tasks and cores a task as the largest run needs. The script starts ranks with srun.
std::string sbatch_script(const Study& study, std::span<const StudyRun> runs,
                          const std::filesystem::path& folder, int tasks);

/// A command as a shell reads it.
std::string shell_text(std::span<const std::string> command);

}  // namespace starpipe::cli
