// SPDX-License-Identifier: Apache-2.0
#include "cli/options/result_options.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli/options/value_checks.hpp"
#include "starpipe/base/environment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/base/messages.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/drawing/timeline_svg.hpp"
#include "starpipe/plan/formats/json_text.hpp"
#include "starpipe/plan/formats/reordering_json.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/formats/trace_json.hpp"
#include "starpipe/plan/page/page.hpp"

namespace starpipe::cli {
namespace {

struct Format {
  const char* name;
  std::string_view suffix;
};
// Without --format a suffix means the first format that has it.
constexpr std::array formats = {Format{"text", ".txt"}, Format{"json", ".json"}, Format{"csv", ".csv"},
                                Format{"svg", ".svg"}, Format{"trace", ".json"}};

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Format& format : formats) names.emplace_back(format.name);
  return names;
}

/// Width of the terminal; nothing if standard output is not a terminal.
std::optional<int> terminal_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  if (size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace

void ResultOptions::add_to(CLI::App& command) {
  CLI::Option* const format =
      command
          .add_option("--format", format_,
                      "text, json, csv (as torch.distributed.pipelining reads it), svg or trace (for Chrome "
                      "and Perfetto). Default: by the suffix of the output file, else text")
          ->type_name("FORMAT")
          ->check(CLI::IsMember(format_names()));
  command.add_flag("--json", json_, "The same as --format json")->excludes(format);
  command
      .add_option("-o,--output", file_,
                  "Write to a file instead of standard output (-): .txt, .json, .csv or .svg")
      ->type_name("FILE");
  command.add_option("--html", html_, "Also write a page for a browser: timelines to explore, in one file")
      ->type_name("FILE.html");
}

void ResultOptions::add_width_to(CLI::App& command) {
  command
      .add_option(
          "--width", width_,
          "Columns of the drawing (default: those of the terminal, or 200 in files and pipes). A longer run "
          "is scaled to fit")
      ->type_name("N")
      ->transform(whole_number(20, 1'000'000));
}

std::string ResultOptions::format() const {
  if (json_) return "json";
  if (format_) return *format_;
  if (!file_) return "text";
  const auto* const found = std::ranges::find(formats, suffix_of(*file_), &Format::suffix);
  return found == formats.end() ? "text" : found->name;
}

void ResultOptions::check() const {
  if (width_ && format() != "text") {
    throw InputError(fmt::format("--width: applies to the text format, not to {}", format()));
  }
  if (html_) {
    constexpr std::array<std::string_view, 1> suffix = {".html"};
    require_suffix("--html", *html_, suffix);
    plan::require_page("--html");
    require_writable("--html", *html_);
  }
  if (!file_) return;
  std::vector<std::string_view> suffixes;
  for (const auto& [name, suffix] : formats) {
    const bool given = json_ || format_.has_value();
    if (given ? format() == name : std::ranges::find(suffixes, suffix) == suffixes.end()) {
      suffixes.push_back(suffix);
    }
  }
  require_suffix("-o", *file_, suffixes);
  require_writable("-o", *file_);
}

namespace {

/// What a CSV file cannot say of the schedule, as a line for people. Empty when it says all.
std::string lost_in_csv(const plan::Schedule& schedule) {
  const bool moves_weights = std::ranges::any_of(schedule.order(), [&](plan::JobId id) {
    return schedule.placement(id).weights != schedule.compute(id);
  });
  std::vector<std::string_view> lost;
  if (moves_weights) lost.emplace_back("which workers hold the weights");
  if (schedule.recompute()) lost.emplace_back("that B computes F again");
  if (lost.empty()) return "";
  return fmt::format("starpipe: a CSV file cannot say {}; a JSON file can\n", fmt::join(lost, " and "));
}

}  // namespace

void ResultOptions::show(const PredictedRun& run, const std::function<std::string()>& text) const {
  show(run, text, nlohmann::ordered_json::object());
}

void ResultOptions::show(const PredictedRun& run, const std::function<std::string()>& text,
                         const nlohmann::ordered_json& more) const {
  const std::string note = plan::describe_reordering(run.schedule.name(), run.reordering);
  const std::string chosen = format();
  std::string result;
  if (chosen == "json") {
    nlohmann::ordered_json json = plan::schedule_json(run.schedule, run.costs, run.timeline, run.unit);
    nlohmann::ordered_json ops = std::move(json["ops"]);  // long, so it stays last
    json.erase("ops");
    if (run.discipline) json["discipline"] = plan::to_string(*run.discipline);
    if (run.reordering) json["reordered"] = plan::reordering_json(*run.reordering);
    json.update(more);
    json["ops"] = std::move(ops);
    result = plan::json_text(json);
  } else if (chosen == "csv") {
    result = plan::schedule_csv(run.schedule, run.timeline);
    print_message(lost_in_csv(run.schedule));
  } else if (chosen == "svg") {
    result = predicted_svg(run);
  } else if (chosen == "trace") {
    result = predicted_trace(run);
  } else {
    result = note + text();
  }
  const bool is_in_result = chosen == "json" || chosen == "text";
  if (run.reordering && !is_in_result) print_message("starpipe: " + note);
  if (html_) write_file("--html", *html_, predicted_page(run, more));
  if (file_) {
    write_file("-o", *file_, result);
  } else {
    print(result);
  }
}

std::string ResultOptions::drawn(const PredictedRun& run) const {
  const bool printed = !file_ || is_standard_output(*file_);
  const std::optional<int> terminal = printed ? terminal_columns() : std::nullopt;
  const plan::TextOptions options = {.colour = terminal && !environment("NO_COLOR"),
                                     .columns = width_.value_or(terminal.value_or(200)),
                                     .unit = run.unit};
  return plan::schedule_text(run.schedule, run.timeline, options);
}

std::string predicted_page(const PredictedRun& run, const nlohmann::ordered_json& more) {
  const plan::RecordedStep step = plan::simulated_step(run.schedule, run.costs);
  const std::array runs = {plan::PageRun{.title = run.schedule.name(),
                                         .unit = run.unit,
                                         .costs = run.costs,
                                         .timelines = {{"predicted", &step}},
                                         .report = &more}};
  return plan::report_page(runs);
}

std::string predicted_svg(const PredictedRun& run) {
  const std::array runs = {
      plan::SvgRun{.title = run.schedule.name(), .schedule = &run.schedule, .timeline = &run.timeline}};
  return plan::timeline_svg(runs, {.unit = run.unit});
}

std::string predicted_trace(const PredictedRun& run) {
  const std::array runs = {
      plan::TracedRun{.name = "predicted", .schedule = &run.schedule, .timeline = &run.timeline}};
  return plan::trace_json(runs).dump() + "\n";
}

}  // namespace starpipe::cli
