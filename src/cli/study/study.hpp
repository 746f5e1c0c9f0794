// SPDX-License-Identifier: Apache-2.0
// A study: many runs of one command, which differ in the values of some settings. docs/studies.md describes
// its file.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace starpipe::cli {

/// A value of a run: of a key of the configuration, of an option of the command, or of `ranks`.
struct Setting {
  std::string name;   ///< such as schedule.name, --policies (an option begins with dashes), ranks; no section
  std::string value;  ///< of a key as --set takes it; of an option its word; a flag has true or false

  [[nodiscard]] bool is_option() const { return name.starts_with("--"); }
  bool operator==(const Setting&) const = default;
};
using Settings = std::vector<Setting>;

/// The commands that a study can run.
inline constexpr std::array<std::string_view, 4> study_commands = {"train", "simulate", "compare", "sim"};

/// True if runs of the command take real time on devices, which other runs at the same time would change.
/// Otherwise a run is one process that computes the same on any machine.
constexpr bool takes_devices(std::string_view command) { return command != "simulate" && command != "sim"; }

/// The setting that says how many MPI ranks a run has.
inline constexpr std::string_view ranks_setting = "ranks";

/// One name of the grid: the settings of each of its values. A value of a section has one for each of its
/// keys.
using GridLine = std::vector<Settings>;

struct Study {
  std::string source;            ///< the study's file, for messages
  std::string command;           ///< one of study_commands
  std::filesystem::path config;  ///< the base configuration
  Settings base;                 ///< `set`: of all runs
  std::vector<GridLine> grid;    ///< every combination of these values is a run
  std::vector<Settings> runs;    ///< each is combined with every point of the grid; at least one, maybe empty
  int repetitions = 1;           ///< of each run
  std::vector<std::string> outputs;  ///< names of study_outputs
};

/// A file that runs of some commands can write in addition to their report: the option is "--" and its name.
struct StudyOutput {
  std::string_view name;  ///< in the study's `outputs`
  std::string_view file;  ///< in the run's folder
  std::array<std::string_view, 3> commands;

  [[nodiscard]] bool is_of(std::string_view command) const {
    return std::ranges::find(commands, command) != commands.end();
  }
};
inline constexpr std::array study_outputs = {
    StudyOutput{"timeline", "timeline.svg", {"train", "simulate", "compare"}},
    StudyOutput{"trace", "trace.json", {"train", "simulate"}},
    StudyOutput{"metrics", "metrics.jsonl", {"train"}}, StudyOutput{"curves", "curves.svg", {"train"}},
    StudyOutput{"html", "report.html", {"train", "simulate", "compare"}}};

/// Reads a study. Throws InputError that names file, line and key.
Study read_study(const std::filesystem::path& file);

/// The report of each run, in its folder.
inline constexpr const char* report_file = "report.json";

}  // namespace starpipe::cli
