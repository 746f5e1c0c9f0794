// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

// A study: many runs of one command, which differ in the values of some settings. docs/studies.md describes
// its file.

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

/// One name of the grid: the settings of each of its values. A value that is a section has a setting for each
/// of its keys.
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
    StudyOutput{"metrics", "metrics.jsonl", {"train"}},
    StudyOutput{"html", "report.html", {"train", "simulate", "compare"}}};

/// Reads a study. Throws InputError that names file, line and key.
Study read_study(const std::filesystem::path& file);

/// The report of each run, in its folder.
inline constexpr const char* report_file = "report.json";

/// One run of a study.
struct StudyRun {
  Settings settings;   ///< all of them
  Settings varied;     ///< the settings that differ between runs
  int repetition = 1;  ///< from 1
  int ranks = 1;       ///< 1: without a launcher
  int workers = 1;     ///< of its schedule
  /// The name of its folder: the varied values, and a number that stands for the whole run. It changes when
  /// the base configuration changes what the run does.
  std::string name = {};
  std::string title = {};  ///< "schedule.name=1f1b, ranks=2, repetition 3", for people
};

/// Throws InputError for a run that its command would refuse.
using RunCheck = std::function<void(const StudyRun& run, const runtime::Config& config)>;

/// Returns all runs of a study, in its order: the entries of `runs`; for each entry the points of the grid,
/// whose last name changes fastest; for each point the repetitions. Reads the base configuration, and loads
/// the plug-ins that it names. Throws InputError, naming study and run, when a run's configuration is
/// refused, when `check` refuses the run, when two runs are the same, and when there are more than 100,000.
std::vector<StudyRun> runs_of(const Study& study, const RunCheck& check);

/// Returns the arguments of a run: the command, `config`, the settings, and outputs in `folder`.
std::vector<std::string> arguments_of(const Study& study, const StudyRun& run,
                                      const std::filesystem::path& config,
                                      const std::filesystem::path& folder);

/// Returns a script for sbatch: an array of `tasks` tasks, each of which runs a block of the runs (--block).
/// The script asks for the tasks, and the cores per task, that the largest run needs, and starts ranks with
/// srun.
std::string sbatch_script(const Study& study, std::span<const StudyRun> runs,
                          const std::filesystem::path& folder, int tasks);

/// Returns a command as text that a shell reads as these words.
std::string shell_text(std::span<const std::string> command);

// The folder of one run of a study: config.yaml (a copy of the base configuration), log.txt (what the run has
// printed), the report and other outputs, run.json (how the run ended) and lock.

enum class RunState : std::uint8_t {
  open,  ///< not run, or interrupted
  done,
  failed
};

/// The outcome of a run, read from its folder.
struct RunOutcome {
  RunState state = RunState::open;
  std::string problem;  ///< of a failed run: the line that says why
  double seconds = 0;   ///< how long the run took; 0 if unknown
  /// The program and its place: starpipe, commit, machine, processor and cores, as far as they are known.
  nlohmann::ordered_json origin = nlohmann::ordered_json::object();
};

/// Reads how a run of the study ended. A run is done if a sweep has recorded its success. Without a record,
/// as after a run that was started by hand, it is done if it has a report and all of the study's outputs.
/// Commands write each file under a temporary name first, and not always the report last. A run whose report
/// is not JSON counts as failed: the file was damaged later.
RunOutcome read_outcome(const Study& study, const std::filesystem::path& folder);

/// The lock of a run's folder: the process that has it executes the run. It ends with the process.
using RunLock = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
/// Creates the folder, and takes its lock. Returns null if another process has it. Where the file system has
/// no locks, every process gets one. Throws InputError when the folder cannot be written.
RunLock lock_run(const std::filesystem::path& folder);

/// Prepares a run: removes the files of an earlier attempt, and writes `config_text` to config.yaml.
void prepare_folder(const std::filesystem::path& folder, std::string_view config_text);

/// Ends a run: writes run.json. `failure`: why the process failed; empty if it succeeded. A failed run's
/// problem is the last message of starpipe in its log, else `failure`.
void record_end(const std::filesystem::path& folder, const std::vector<std::string>& command,
                const std::string& failure, double seconds);

/// Returns the folder of a run, below the study's `folder`.
std::filesystem::path folder_of(const StudyRun& run, const std::filesystem::path& folder);
/// Returns a file in the folder of a run.
std::filesystem::path config_of(const std::filesystem::path& folder);
std::filesystem::path log_of(const std::filesystem::path& folder);

// How a study runs, and its table: a row for each run; for `compare` a row for each schedule and policy of
// each run.

/// Options for the runs of a study.
struct StudyOptions {
  std::filesystem::path folder;            ///< of the study's results
  int jobs = 1;                            ///< maximum number of runs at a time
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

/// Claims the folder for results of studies: creates it if it is missing. Throws InputError when the folder
/// holds other things, or cannot be written.
void take_folder(const std::filesystem::path& folder);

/// Returns the words that start a run: the launcher for several ranks, this program, and its arguments.
/// Outputs are in the folder of the run.
std::vector<std::string> command_of(const Study& study, const StudyRun& run, const StudyOptions& options,
                                    const std::filesystem::path& config);

/// Executes the runs that are not done, and shows progress. Several sweeps on one folder divide the runs
/// among them.
///
/// Runs of `simulate` and `sim` execute `jobs` at a time. Runs of other commands measure times: with `jobs`
/// above 1 and a local launcher this host's cores are divided into `jobs` shares, and each run is bound to
/// one share. A run that has more workers than its share has cores executes alone, on all cores, after the
/// others.
///
/// When an ending signal comes, ends the runs under way and throws EndedBySignal. Throws InputError if there
/// are fewer cores than `jobs`, or if the folder cannot be written.
StudyCounts run_study(const Study& study, std::span<const StudyRun> runs, const StudyOptions& options);

/// Returns the rows of the table, in the order of the runs. A member is a column; a row has only the columns
/// for which it has a value. Times are in seconds, except for schedules whose durations have no unit.
/// docs/studies.md lists the columns.
std::vector<nlohmann::ordered_json> study_rows(const Study& study, std::span<const StudyRun> runs,
                                               const std::filesystem::path& folder);

/// Returns the rows as CSV, with each column that some row has, in the order of their first appearance.
std::string rows_csv(std::span<const nlohmann::ordered_json> rows);
/// Returns the rows as JSON, one per line.
std::string rows_jsonl(std::span<const nlohmann::ordered_json> rows);
/// Returns the main figures for people: what varies, makespans, bubble fraction and memory.
std::string rows_text(const Study& study, std::span<const nlohmann::ordered_json> rows);

}  // namespace starpipe::cli
