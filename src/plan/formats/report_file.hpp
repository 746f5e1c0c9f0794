// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <list>
#include <optional>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "plan/drawing/page.hpp"
#include "plan/explain/compared_run.hpp"
#include "plan/explain/recorded_step.hpp"

namespace starpipe::plan {

/// The part of a file about one schedule. The page refers to it, so it stays where it is.
struct ReportRun {
  ReportRun() = default;
  ReportRun(const ReportRun&) = delete;
  ReportRun& operator=(const ReportRun&) = delete;
  ~ReportRun() = default;

  PageRun page = {};                         ///< without a title
  std::string schedule = {};                 ///< its name, where the file has several schedules
  std::list<RecordedStep> steps = {};        ///< of `page.timelines`, except the steps of `compared`
  std::optional<ComparedRun> compared = {};  ///< of a report of `train` or `sim`
  nlohmann::ordered_json report = {};        ///< the file's JSON as the page shows it
};

/// The content of a file of runs or of a schedule.
struct ReportFile {
  std::filesystem::path file = {};  ///< its name
  std::list<ReportRun> runs = {};   ///< one, or one for each schedule of a `compare`
};

/// Reads a report of `train` or `sim`, the JSON of `compare`, or a schedule: JSON of `schedule show`,
/// `simulate`, `search` and `periodic`, or CSV. Throws InputError, naming the file, for anything else.
ReportFile read_report(const std::filesystem::path& file);

/// Returns the page of the files, side by side. Throws InputError when the times of two files have no common
/// unit, and as `report_page` does.
std::string page_of(std::span<const ReportFile* const> files);

}  // namespace starpipe::plan
