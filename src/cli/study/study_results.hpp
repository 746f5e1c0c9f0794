// SPDX-License-Identifier: Apache-2.0
// The table of a study: a row for each run; for `compare` a row for each schedule and policy of each run.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/study/study_runs.hpp"

namespace starpipe::cli {

/// The rows, in the order of the runs. A member is a column; a row lacks the columns that it has no value
/// for. Times are in seconds, but for schedules whose durations have no unit. docs/studies.md lists the
/// columns.
std::vector<nlohmann::ordered_json> study_rows(const Study& study, std::span<const StudyRun> runs,
                                               const std::filesystem::path& folder);

/// The rows as CSV. The columns are those of all rows, in the order in which rows first have them.
std::string rows_csv(std::span<const nlohmann::ordered_json> rows);
/// The rows as JSON, one a line.
std::string rows_jsonl(std::span<const nlohmann::ordered_json> rows);
/// The main figures for people: what varies, makespans, bubble fraction and memory.
std::string rows_text(const Study& study, std::span<const nlohmann::ordered_json> rows);

/// The folder of a run, below the study's `folder`.
std::filesystem::path folder_of(const StudyRun& run, const std::filesystem::path& folder);

}  // namespace starpipe::cli
