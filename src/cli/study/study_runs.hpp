// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/study/study.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// One run of a study.
struct StudyRun {
  Settings settings;   ///< all of them
  Settings varied;     ///< those that are not the same in all runs
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

/// The arguments of a run behind the name of the program: the command, `config`, the settings, and outputs in
/// `folder`.
std::vector<std::string> arguments_of(const Study& study, const StudyRun& run,
                                      const std::filesystem::path& config,
                                      const std::filesystem::path& folder);

/// The files that runs of a study read. A run depends on their contents, and not on their names alone.
class InputFiles {
 public:
  /// Larger files are known by their size, since reading the training data of every study would take too
  /// long.
  static constexpr std::uintmax_t max_read_bytes = 16U << 20U;

  /// A value that changes with the contents of these files. Names that are no regular files are left out.
  nlohmann::json marks(std::span<const std::filesystem::path> files);

 private:
  std::map<std::filesystem::path, nlohmann::json> known_;
};

/// A script for sbatch: an array of `tasks` tasks, each of which runs a block of the runs (--block). It asks
/// for as many tasks and cores a task as the largest run needs. The script starts ranks with srun.
std::string sbatch_script(const Study& study, std::span<const StudyRun> runs,
                          const std::filesystem::path& folder, int tasks);

/// A command as a shell reads it.
std::string shell_text(std::span<const std::string> command);

}  // namespace starpipe::cli
