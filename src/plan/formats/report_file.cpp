// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/report_file.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/files.hpp"
#include "plan/formats/compared_run_json.hpp"
#include "plan/formats/json_value.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"

namespace starpipe::plan {
namespace {

/// Returns the report as the page shows it, or an empty object for a file that is not a JSON object: a CSV
/// file, or a file that the reader of schedules will refuse. Reports are written by recursion, so their depth
/// is bounded.
nlohmann::ordered_json parse_report(const std::string& text, const std::string& name) {
  require_structure(text, name);
  nlohmann::ordered_json report = nlohmann::ordered_json::parse(text, nullptr, false);
  return report.is_object() ? report : nlohmann::ordered_json::object();
}

/// Returns the part of a file about its first schedule: the file itself unless it has several.
const nlohmann::ordered_json& first_schedule(const nlohmann::ordered_json& file) {
  const auto schedules = file.find("schedules");
  const bool several = schedules != file.end() && schedules->is_array() && !schedules->empty();
  return several ? schedules->front() : file;
}

/// Throws InputError for JSON without jobs: says where its jobs are, if they are anywhere.
[[noreturn]] void refuse_without_jobs(const nlohmann::ordered_json& file, const std::string& name) {
  if (file.contains("policies") || first_schedule(file).contains("policies")) {
    throw InputError(fmt::format(
        "{}: the JSON that `compare --json` prints has no jobs; give `compare` -o FILE.json or --html",
        name));
  }
  if (file.contains("schedules")) {
    throw InputError(fmt::format(
        "{}: the JSON of `schedule compare` has no jobs; give `schedule compare` the option --html", name));
  }
  throw InputError(fmt::format(
      "{}: no jobs: neither \"ops\" of a schedule, nor \"explain\" of a report, nor \"record\" of "
      "`compare`",
      name));
}

/// True if the JSON of a schedule's runs under several policies has their jobs.
bool has_records(const nlohmann::ordered_json& schedule) {
  if (!schedule.is_object() || !schedule.contains("policies")) return false;
  const auto& policies = schedule["policies"];
  return policies.is_array() && !policies.empty() && policies[0].is_object() &&
         policies[0].contains("record");
}

void read_train_report(const std::string& text, const std::string& name, ReportRun& read) {
  read.compared = compared_run_from_json(text, name);
  read.report = report_for_page(std::move(read.report));
  read.page = compared_page_run("", *read.compared, read.report);
}

/// Begins the run's timelines with the predicted one.
void add_predicted(const Schedule& schedule, const Costs& costs, const std::string& unit, ReportRun& read) {
  read.page.unit = unit;
  read.page.costs = costs;
  read.page.report = &read.report;
  read.page.timelines.push_back({"predicted", &read.steps.emplace_back(simulated_step(schedule, costs))});
}

/// The prediction is that with the costs of the first policy, as on the page of `compare --html`.
void read_policies(const std::vector<PolicyRun>& policies, ReportRun& read) {
  read.report = report_for_page(std::move(read.report));
  add_predicted(policies.front().step.planned, policies.front().costs, "s", read);
  for (const PolicyRun& run : policies)
    read.page.timelines.push_back({run.policy, &read.steps.emplace_back(run.step)});
}

void read_schedule_run(const std::string& text, const std::string& name, ReportRun& read) {
  const ImportedSchedule of = schedule_from_text(text, name);
  read.report.erase("ops");
  add_predicted(of.schedule, of.costs, of.unit, read);
}

/// Files of one name get their folders, too.
std::string title_of(const std::filesystem::path& file, std::span<const ReportFile* const> files) {
  const auto same = std::ranges::count_if(
      files, [&](const ReportFile* other) { return other->file.filename() == file.filename(); });
  return same > 1 ? file.string() : file.filename().string();
}

}  // namespace

ReportFile read_report(const std::filesystem::path& file) {
  const std::string name = file.string();
  const std::string text = read_file(file);
  ReportFile read{.file = file};
  nlohmann::ordered_json parsed = parse_report(text, name);
  if (const nlohmann::ordered_json& first = first_schedule(parsed); has_records(first)) {
    const bool several = &first != &parsed;
    const auto schedules = compared_policies_from_json(text, name);
    for (std::size_t s = 0; s < schedules.size(); ++s) {
      ReportRun& run = read.runs.emplace_back();
      run.report = std::move(several ? parsed["schedules"][s] : parsed);
      if (several) run.schedule = schedules[s].front().step.planned.name();
      read_policies(schedules[s], run);
    }
    return read;
  }
  ReportRun& run = read.runs.emplace_back();
  run.report = std::move(parsed);
  if (run.report.contains("explain")) {
    read_train_report(text, name, run);
  } else if (!run.report.empty() && !run.report.contains("ops")) {
    refuse_without_jobs(run.report, name);
  } else {
    read_schedule_run(text, name, run);
  }
  return read;
}

std::string page_of(std::span<const ReportFile* const> files) {
  std::vector<PageRun> runs;
  for (const ReportFile* const file : files) {
    const std::string title = title_of(file->file, files);
    for (const ReportRun& run : file->runs) {
      runs.push_back(run.page);
      runs.back().title = run.schedule.empty() ? title : fmt::format("{}, {}", title, run.schedule);
    }
    if (runs.back().unit != runs.front().unit) {
      const auto unit = [](const PageRun& run) {
        return run.unit.empty() ? std::string("a unit without a name") : run.unit;
      };
      throw InputError(fmt::format("{}: its times are in {}, the times of {} in {}: they have no common axis",
                                   file->file.string(), unit(runs.back()), files.front()->file.string(),
                                   unit(runs.front())));
    }
  }
  return report_page(runs);
}

}  // namespace starpipe::plan
