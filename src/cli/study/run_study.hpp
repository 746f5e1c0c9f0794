// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cli/study/study_runs.hpp"

namespace starpipe::cli {

/// How the runs of a study are run.
struct SweepOptions {
  std::filesystem::path folder;            ///< of the study's results
  int jobs = 1;                            ///< the most runs at a time
  bool retry = false;                      ///< whether failed runs are run again
  std::vector<std::string> launcher = {};  ///< starts ranks: the number of ranks and a program follow
  /// Whether the launcher starts ranks on this host alone, so that runs at the same time can have cores of
  /// their own.
  bool local = true;
};

/// What a sweep has done.
struct SweepCounts {
  int done_before = 0;
  int done = 0;
  int failed = 0;         ///< in this sweep
  int failed_before = 0;  ///< in an earlier one, and not run again
  int elsewhere = 0;      ///< another sweep was running them
};

/// Takes the folder for results of studies: creates it where it is missing. Throws InputError when the folder
/// holds other things, or cannot be written.
void take_folder(const std::filesystem::path& folder);

/// The words that start a run: the launcher for several ranks, this program, and its arguments. Outputs are
/// in the folder of the run.
std::vector<std::string> command_of(const Study& study, const StudyRun& run, const SweepOptions& options,
                                    const std::filesystem::path& config);

/// Runs what is not done, and shows progress. Several sweeps on one folder divide the runs among them.
///
/// Runs of `simulate` and `sim` are run `jobs` at a time. Others measure times: with `jobs` above 1 and a
/// local launcher this host's cores are divided into `jobs` shares, and a run is bound to one of them. A run
/// with more workers than its share has cores is run alone, on all cores, after the others.
///
/// Throws EndedBySignal, after it has ended the runs under way, when an ending signal comes; InputError when
/// there are fewer cores than `jobs`, and when the folder cannot be written.
SweepCounts run_sweep(const Study& study, std::span<const StudyRun> runs, const SweepOptions& options);

}  // namespace starpipe::cli
