// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "base/messages.hpp"
#include "cli/options/options.hpp"
#include "plan/formats/json_value.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"

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

/// Returns the width of the terminal; nullopt if standard output is not a terminal.
std::optional<int> terminal_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return std::nullopt;
  if (size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

}  // namespace

void ResultOptions::add_to(CLI::App& command) {
  CLI::Option* const format =
      add_option(command, "--format FORMAT", format_,
                 "text, json, csv (as torch.distributed.pipelining reads it), svg or trace (for Chrome and "
                 "Perfetto). Default: by the suffix of the output file, else text",
                 CLI::IsMember(format_names()));
  command.add_flag("--json", json_, "The same as --format json")->excludes(format);
  add_option(command, "-o,--output FILE", file_,
             "Write to a file instead of standard output (-): .txt, .json, .csv or .svg");
  outputs_.add(command, "--html FILE.html",
               "Also write a page for a browser: timelines to explore, in one file");
}

void ResultOptions::add_width_to(CLI::App& command) {
  add_option(
      command, "--width N", width_,
      "Columns of the drawing (default: as wide as the terminal, or 200 in files and pipes). A longer run "
      "is scaled to fit",
      whole_number(20, 1'000'000));
}

std::string ResultOptions::format() const {
  if (json_) return "json";
  if (format_) return *format_;
  if (!file_) return "text";
  const auto* const found = std::ranges::find(formats, suffix_of(*file_), &Format::suffix);
  return found == formats.end() ? "text" : found->name;
}

void ResultOptions::check(std::span<const std::filesystem::path> inputs) const {
  const std::string chosen = format();
  if (width_ && chosen != "text")
    throw InputError(fmt::format("--width: applies to the text format, not to {}", chosen));
  if (file_) {
    const bool given = json_ || format_;
    std::vector<std::string_view> suffixes;
    for (const auto& [name, suffix] : formats) {
      if (given ? chosen == name : !std::ranges::count(suffixes, suffix)) suffixes.push_back(suffix);
    }
    require_suffix("-o", *file_, suffixes);
  }
  std::vector<OutputFile> all = outputs_.files();
  all.insert(all.begin(), {"-o", file_});
  const OutputFiles outputs(std::move(all));
  outputs.check(inputs);
  outputs.require_writable();
}

void ResultOptions::show(const plan::PredictedRun& run, const std::function<std::string()>& text,
                         const nlohmann::ordered_json& more) const {
  const std::string note = plan::describe_reordering(run.schedule.name(), run.reordering);
  const std::string chosen = format();
  std::string result;
  if (chosen == "json") {
    result = plan::json_text(plan::predicted_json(run, more));
  } else if (chosen == "csv") {
    result = plan::schedule_csv(run.schedule, run.timeline);
    const std::string lost = plan::lost_in_csv(run.schedule);
    if (!lost.empty()) print_message(fmt::format("starpipe: {}\n", lost));
  } else if (chosen == "svg") {
    result = plan::predicted_svg(run);
  } else if (chosen == "trace") {
    result = plan::predicted_trace(run);
  } else {
    result = note + text() + plan::describe_kept(run);
  }
  const bool is_in_result = chosen == "json" || chosen == "text";
  if (run.reordering && !is_in_result) print_message("starpipe: " + note);
  outputs_.write("--html", [&] { return plan::predicted_page(run, more); });
  write_file("-o", file_.value_or("-"), result);
}

std::string ResultOptions::drawn(const plan::PredictedRun& run) const {
  const std::optional<int> terminal =
      is_standard_output(file_.value_or("-")) ? terminal_columns() : std::nullopt;
  const plan::TextOptions options = {.colour = terminal && !environment("NO_COLOR"),
                                     .columns = width_.value_or(terminal.value_or(200)),
                                     .unit = run.unit};
  return plan::schedule_text(run.schedule, run.timeline, options);
}

}  // namespace starpipe::cli
