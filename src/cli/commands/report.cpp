// SPDX-License-Identifier: Apache-2.0

#include <array>
#include <filesystem>
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
#include "starpipe/plan/formats/compared_run_json.hpp"
#include "starpipe/plan/formats/imported_schedule.hpp"
#include "starpipe/plan/page/page.hpp"

namespace starpipe::cli {
namespace {

struct ReportOptions {
  std::vector<std::filesystem::path> files;
  std::filesystem::path output;
};

/// What a file holds, for the page.
struct ReadFile {
  std::optional<plan::ComparedRun> run;      ///< of a report
  std::optional<plan::RecordedStep> step;    ///< of a schedule
  std::optional<plan::ImportedSchedule> of;  ///< the schedule
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

/// Reads a report of `train`, or a schedule: JSON of `schedule show`, `simulate` and `search`, or CSV.
ReadFile read_report(const std::filesystem::path& file) {
  const std::string name = file.string();
  const std::string text = read_file(file);
  ReadFile read;
  read.report = parse_report(text, name);
  if (read.report.contains("explain")) {
    read.run = plan::compared_run_from_json(text, name);
    read.report = plan::report_for_page(std::move(read.report));
    return read;
  }
  if (read.report.contains("policies") || read.report.contains("schedules")) {
    throw InputError(
        fmt::format("{}: the JSON of `compare` has no jobs; give `compare` the option --html", name));
  }
  if (read.report.contains("config")) {
    throw InputError(fmt::format("{}: no \"explain\": this is no report of `starpipe train --report`", name));
  }
  read.of = plan::schedule_from_text(text, name);
  read.step = plan::simulated_step(read.of->schedule, read.of->costs);
  read.report.erase("ops");
  return read;
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
  std::list<ReadFile> read;  // the page's runs refer to it
  std::vector<plan::PageRun> runs;
  for (const std::filesystem::path& file : options.files) {
    ReadFile& one = read.emplace_back(read_report(file));
    const std::string title = title_of(file, options.files);
    if (one.run) {
      runs.push_back(plan::compared_page_run(title, *one.run, one.report));
    } else {
      runs.push_back({.title = title,
                      .unit = one.of->unit,
                      .costs = one.of->costs,
                      .timelines = {{"predicted", &*one.step}},
                      .report = &one.report});
    }
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
      ->add_option("reports", options->files,
                   "Reports of `starpipe train --report`, or schedules: JSON of `schedule show`, `simulate` "
                   "and `search`, CSV of PyTorch. Several are shown side by side")
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
