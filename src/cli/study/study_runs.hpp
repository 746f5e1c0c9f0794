// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/study/study.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// One run of a study.
struct StudyRun {
  Settings settings;   ///< all of them
  Settings varied;     ///< the settings that differ between runs
  int repetition = 1;  ///< from 1
  int ranks = 1;       ///< 1: without a launcher
  int workers = 1;     ///< of its schedule
  /// The name of its folder: the varied values, and a number that stands for the whole run. It changes when
  /// the base configuration changes what the run does.
  std::string name = {};
  std::string title = {};  ///< "schedule.name=1f1b, ranks=2, repetition 3", for people
};

/// Throws InputError for a run that its command would refuse.
using RunCheck = std::function<void(const StudyRun& run, const runtime::Config& config)>;

/// All runs of a study, in its order: the entries of `runs`, for each the points of the grid with the last
/// name changing fastest, for each the repetitions. Reads the base configuration, and loads the plug-ins that
/// it names. Throws InputError, naming study and run, when a run's configuration is refused, when `check`
/// refuses the run, when two runs are the same, and when there are more than 100,000.
std::vector<StudyRun> runs_of(const Study& study, const RunCheck& check);

/// The arguments of a run: the command, `config`, the settings, and outputs in `folder`.
std::vector<std::string> arguments_of(const Study& study, const StudyRun& run,
                                      const std::filesystem::path& config,
                                      const std::filesystem::path& folder);

/// Returns a script for sbatch: an array of `tasks` tasks, each of which runs a block of the runs (--block).
/// The script asks for the tasks, and the cores per task, that the largest run needs, and starts ranks with
/// srun.
std::string sbatch_script(const Study& study, std::span<const StudyRun> runs,
                          const std::filesystem::path& folder, int tasks);

/// A command as a shell reads it.
std::string shell_text(std::span<const std::string> command);

}  // namespace starpipe::cli
