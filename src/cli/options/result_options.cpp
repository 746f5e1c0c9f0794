// SPDX-License-Identifier: Apache-2.0
#include "cli/options/result_options.hpp"

#include <array>
#include <filesystem>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "starpipe/base/environment.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/plan/formats/json_text.hpp"
#include "starpipe/plan/formats/reordering_json.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/formats/schedule_text.hpp"
#include "starpipe/plan/formats/timeline_svg.hpp"
#include "starpipe/plan/formats/trace_json.hpp"

namespace starpipe::cli {
namespace {

constexpr std::array formats = {"text", "json", "csv", "svg", "trace"};

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
                      "and Perfetto). Default: by the extension of the output file, else text")
          ->type_name("FORMAT")
          ->check(CLI::IsMember(std::vector<std::string>(formats.begin(), formats.end())));
  command.add_flag("--json", json_, "The same as --format json")->excludes(format);
  command.add_option("-o,--output", file_, "Write to a file instead of standard output")->type_name("FILE");
}

std::string ResultOptions::format() const {
  if (json_) return "json";
  if (format_) return *format_;
  if (file_) {
    const std::string extension = std::filesystem::path(*file_).extension();
    for (const char* format : {"json", "csv", "svg"}) {
      if (extension == std::string(".") + format) return format;
    }
  }
  return "text";
}

void ResultOptions::check() const {
  if (file_) require_writable("-o", *file_);
}

void ResultOptions::show(const plan::LimitedSchedule& made, const plan::Costs& costs,
                         const plan::Timeline& timeline, const std::function<std::string()>& text) const {
  show(made, costs, timeline, text, nlohmann::ordered_json::object());
}

void ResultOptions::show(const plan::LimitedSchedule& made, const plan::Costs& costs,
                         const plan::Timeline& timeline, const std::function<std::string()>& text,
                         const nlohmann::ordered_json& more) const {
  const plan::Schedule& schedule = made.schedule;
  const std::string note = plan::describe_reordering(schedule.name(), made.reordering);
  const std::string chosen = format();
  std::string result;
  if (chosen == "json") {
    nlohmann::ordered_json json = plan::schedule_json(schedule, costs, timeline);
    nlohmann::ordered_json ops = std::move(json["ops"]);  // long, so it stays last
    json.erase("ops");
    if (made.reordering) json["reordered"] = plan::reordering_json(*made.reordering);
    json.update(more);
    json["ops"] = std::move(ops);
    result = plan::json_text(json);
  } else if (chosen == "csv") {
    result = plan::schedule_csv(schedule, timeline);
  } else if (chosen == "svg") {
    result = predicted_svg(schedule, timeline);
  } else if (chosen == "trace") {
    result = predicted_trace(schedule, timeline);
  } else {
    result = note + text();
  }
  const bool is_in_result = chosen == "json" || chosen == "text";
  if (made.reordering && !is_in_result) fmt::print(stderr, "starpipe: {}", note);
  if (file_) {
    write_file("-o", *file_, result);
  } else {
    print(result);
  }
}

std::string predicted_svg(const plan::Schedule& schedule, const plan::Timeline& timeline) {
  const std::array runs = {
      plan::SvgRun{.title = schedule.name(), .schedule = &schedule, .timeline = &timeline}};
  return plan::timeline_svg(runs);
}

std::string predicted_trace(const plan::Schedule& schedule, const plan::Timeline& timeline) {
  const std::array runs = {
      plan::TracedRun{.name = "predicted", .schedule = &schedule, .timeline = &timeline}};
  return plan::trace_json(runs).dump() + "\n";
}

std::string drawn(const plan::Schedule& schedule, const plan::Timeline& timeline) {
  plan::TextOptions options;
  if (const auto columns = terminal_columns()) {
    options.columns = *columns;
    options.colour = !environment("NO_COLOR");
  } else {
    options.columns = 200;  // files and pipes do not wrap lines
  }
  return plan::schedule_text(schedule, timeline, options);
}

}  // namespace starpipe::cli
