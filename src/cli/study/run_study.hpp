// SPDX-License-Identifier: Apache-2.0
// Runs a study, and makes its table: a row for each run; for `compare` a row for each schedule and policy of
// each run.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/study/study_runs.hpp"

namespace starpipe::cli {

/// Options for the runs of a study.
struct StudyOptions {
  std::filesystem::path folder;            ///< of the study's results
  int jobs = 1;                            ///< the most runs at a time
  bool retry = false;                      ///< failed runs are run again
  std::vector<std::string> launcher = {};  ///< starts ranks: the number of ranks and a program follow
  /// The launcher starts ranks on this host alone, so that runs at the same time can have cores of their own.
  bool local = true;
};

/// The runs of a study by how they ended.
struct StudyCounts {
  int done_before = 0;
  int done = 0;
  int failed = 0;         ///< now
  int failed_before = 0;  ///< in an earlier sweep, and not run again
  int elsewhere = 0;      ///< another sweep was running them
};

/// Takes the folder for results of studies: creates it where it is missing. Throws InputError when the folder
/// holds other things, or cannot be written.
void take_folder(const std::filesystem::path& folder);

/// The words that start a run: the launcher for several ranks, this program, and its arguments. Outputs are
/// in the folder of the run.
std::vector<std::string> command_of(const Study& study, const StudyRun& run, const StudyOptions& options,
                                    const std::filesystem::path& config);

/// Runs what is not done, and shows progress. Several sweeps on one folder divide the runs among them.
///
/// Runs of `simulate` and `sim` are run `jobs` at a time. Others measure times: with `jobs` above 1 and a
/// local launcher this host's cores are divided into `jobs` shares, and a run is bound to one of them. A run
/// with more workers than its share has cores is run alone, on all cores, after the others.
///
/// Throws EndedBySignal, after it has ended the runs under way, when an ending signal comes; InputError when
/// there are fewer cores than `jobs`, and when the folder cannot be written.
StudyCounts run_study(const Study& study, std::span<const StudyRun> runs, const StudyOptions& options);

/// The rows of the table, in the order of the runs. A member is a column; a row lacks the columns that it has
/// no value for. Times are in seconds, but for schedules whose durations have no unit. docs/studies.md lists
/// the columns.
std::vector<nlohmann::ordered_json> study_rows(const Study& study, std::span<const StudyRun> runs,
                                               const std::filesystem::path& folder);

/// The rows as CSV. Its columns are all that some row has, in the order in which rows first have them.
std::string rows_csv(std::span<const nlohmann::ordered_json> rows);
/// The rows as JSON, one per line.
std::string rows_jsonl(std::span<const nlohmann::ordered_json> rows);
/// The main figures for people: what varies, makespans, bubble fraction and memory.
std::string rows_text(const Study& study, std::span<const nlohmann::ordered_json> rows);

}  // namespace starpipe::cli
