// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands/subcommand.hpp"
#include "cli/options/output_files.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/plan/explain/recorded_step.hpp"
#include "starpipe/plan/formats/compared_policies_json.hpp"
#include "starpipe/plan/formats/compared_run_json.hpp"
#include "starpipe/plan/formats/imported_schedule.hpp"
#include "starpipe/plan/page/page.hpp"

namespace starpipe::cli {
namespace {

struct ReportOptions {
  std::vector<std::filesystem::path> files;
  std::filesystem::path output;
};

/// What a file holds of one schedule. The page refers to it, so it stays where it is.
struct ReadRun {
  plan::PageRun page;
  std::list<plan::RecordedStep> steps;  ///< of `page.timelines`
  std::optional<plan::ComparedRun> compared;
  nlohmann::ordered_json report;
};

/// The report as the page shows it; an empty object for a file that is no JSON object: a CSV file, or one of
/// which the reader of schedules says what is wrong. Reports are written by recursion, so their depth is
/// bounded.
nlohmann::ordered_json parse_report(const std::string& text, const std::string& name) {
  constexpr int most_levels = 64;
  const auto refuse_deep = [&](int depth, nlohmann::ordered_json::parse_event_t, nlohmann::ordered_json&) {
    if (depth > most_levels)
      throw InputError(fmt::format("{}: its values are nested in more than {} levels", name, most_levels));
    return true;
  };
  nlohmann::ordered_json report = nlohmann::ordered_json::parse(text, refuse_deep, false);
  return report.is_object() ? report : nlohmann::ordered_json::object();
}

/// Throws InputError for JSON without jobs: says where its jobs are, if they are anywhere.
[[noreturn]] void refuse_without_jobs(const nlohmann::ordered_json& file, const std::string& name) {
  const bool is_of_compare =
      file.contains("policies") || (file.contains("schedules") && file["schedules"].is_array() &&
                                    !file["schedules"].empty() && file["schedules"][0].contains("policies"));
  if (is_of_compare) {
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

/// Whether the JSON of a schedule's runs under several policies has their jobs.
bool has_records(const nlohmann::ordered_json& schedule) {
  if (!schedule.is_object() || !schedule.contains("policies")) return false;
  const auto& policies = schedule["policies"];
  return policies.is_array() && !policies.empty() && policies[0].is_object() &&
         policies[0].contains("record");
}

void read_train_report(const std::string& text, const std::string& name, ReadRun& read) {
  read.compared = plan::compared_run_from_json(text, name);
  read.report = plan::report_for_page(std::move(read.report));
  read.page = plan::compared_page_run(name, *read.compared, read.report);
}

/// The prediction is that with the costs of the first policy, as on the page of `compare --html`.
void read_policies(const std::vector<plan::PolicyRun>& policies, ReadRun& read) {
  const plan::PolicyRun& first = policies.front();
  read.report = plan::report_for_page(std::move(read.report));
  read.page.unit = "s";
  read.page.costs = first.costs;
  read.page.report = &read.report;
  read.page.timelines.push_back(
      {"predicted", &read.steps.emplace_back(plan::simulated_step(first.step.planned, first.costs))});
  for (const plan::PolicyRun& run : policies)
    read.page.timelines.push_back({run.policy, &read.steps.emplace_back(run.step)});
}

void read_schedule(const std::string& text, const std::string& name, ReadRun& read) {
  const plan::ImportedSchedule of = plan::schedule_from_text(text, name);
  read.report.erase("ops");
  read.page.unit = of.unit;
  read.page.costs = of.costs;
  read.page.report = &read.report;
  read.page.timelines.push_back(
      {"predicted", &read.steps.emplace_back(plan::simulated_step(of.schedule, of.costs))});
}

/// Adds what a file holds: a report of `train` or `sim`, the JSON of `compare`, whose schedules are a run
/// each, or a schedule: JSON of `schedule show`, `simulate`, `search` and `periodic`, or CSV.
void read_file_into(std::list<ReadRun>& runs, const std::filesystem::path& file, const std::string& title) {
  const std::string name = file.string();
  const std::string text = read_file(file);
  nlohmann::ordered_json json = parse_report(text, name);
  const bool several = json.contains("schedules") && json["schedules"].is_array() &&
                       !json["schedules"].empty() && has_records(json["schedules"][0]);
  if (several || has_records(json)) {
    const auto schedules = plan::compared_policies_from_json(text, name);
    for (std::size_t s = 0; s < schedules.size(); ++s) {
      ReadRun& read = runs.emplace_back();
      read.report = several ? std::move(json["schedules"][s]) : std::move(json);
      read_policies(schedules[s], read);
      const std::string& schedule = schedules[s].front().step.planned.name();
      read.page.title = several ? fmt::format("{}, {}", title, schedule) : title;
    }
    return;
  }
  ReadRun& read = runs.emplace_back();
  read.report = std::move(json);
  if (read.report.contains("explain")) {
    read_train_report(text, name, read);
  } else if (!read.report.empty() && !read.report.contains("ops")) {
    refuse_without_jobs(read.report, name);
  } else {
    read_schedule(text, name, read);
  }
  read.page.title = title;
}

/// Files of one name get their folders, too.
std::string title_of(const std::filesystem::path& file, const std::vector<std::filesystem::path>& files) {
  int same = 0;
  for (const std::filesystem::path& other : files) same += other.filename() == file.filename() ? 1 : 0;
  return same > 1 ? file.string() : file.filename().string();
}

int report(const ReportOptions& options) {
  const std::array outputs = {OutputFile{"-o", options.output.string(), ".html"}};
  check_outputs(outputs, options.files);
  plan::require_page("report");
  require_writable("-o", options.output);
  std::list<ReadRun> read;  // the page's runs refer to it
  std::vector<plan::PageRun> runs;
  for (const std::filesystem::path& file : options.files) {
    const std::size_t before = read.size();
    read_file_into(read, file, title_of(file, options.files));
    for (auto run = std::next(read.begin(), static_cast<std::ptrdiff_t>(before)); run != read.end(); ++run)
      runs.push_back(run->page);
    if (runs.back().unit != runs.front().unit) {
      const auto unit = [](const plan::PageRun& run) {
        return run.unit.empty() ? std::string("a unit without a name") : run.unit;
      };
      throw InputError(fmt::format("{}: its times are in {}, those of {} in {}: they have no common axis",
                                   file.string(), unit(runs.back()), options.files.front().string(),
                                   unit(runs.front())));
    }
  }
  write_file("-o", options.output, plan::report_page(runs));
  return 0;
}

void add_report(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "report", "Make a page for a browser from reports: timelines, causes, curves, tables");
  const auto options = std::make_shared<ReportOptions>();
  command
      ->add_option(
          "reports", options->files,
          "Reports of `train` and `sim`, files of `compare -o`, or schedules: JSON of `schedule show`, "
          "`simulate`, `search` and `periodic`, CSV of PyTorch. Several are shown side by side")
      ->required()
      ->type_name("REPORT.json");
  command->add_option("-o,--output", options->output, "The page, one file that needs no network")
      ->required()
      ->type_name("FILE.html");
  command->footer(
      "Example:\n"
      "  starpipe report report.json -o report.html");
  command->callback([options, &action] { action = [options] { return report(*options); }; });
}

const bool report_registered = register_subcommand({.position = 16, .add = add_report});

}  // namespace
}  // namespace starpipe::cli
