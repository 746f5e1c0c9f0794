// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <set>
#include <sstream>

#include <unistd.h>

#include "base/environment.hpp"
#include "cli/commands/subcommand.hpp"
#include "cli/processes/launchers.hpp"
#include "cli/study/study.hpp"
#include "runtime/report/report.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"

namespace starpipe::cli {
namespace {

constexpr std::size_t max_printed_rows = 60;

struct SweepOptions {
  std::string study;
  std::string folder;
  int jobs = 1;
  bool retry = false;
  bool print = false;
  bool collect = false;
  std::optional<int> slurm;
  std::optional<std::string> block;
  std::optional<std::string> launcher;
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// Returns the launcher of our MPI on PATH.
std::string find_mpiexec() {
  for (const char* name : mpi_launchers) {
    std::istringstream folders(environment("PATH").value_or(""));
    for (std::string folder; std::getline(folders, folder, ':');) {
      if (::access((std::filesystem::path(folder) / name).c_str(), X_OK) == 0) return name;
    }
  }
  throw InputError("there is no mpiexec on PATH, and the study has runs on several ranks (see --launcher)");
}

/// `all`: the runs of the study.
StudyOptions options_of(const SweepOptions& command, const std::vector<StudyRun>& all) {
  StudyOptions options{.folder = command.folder, .jobs = command.jobs, .retry = command.retry};
  const bool several_ranks = std::ranges::any_of(all, [](const StudyRun& run) { return run.ranks > 1; });
  if (command.launcher) {
    if (!several_ranks) throw InputError("--launcher: no run of the study is on several ranks");
    options.launcher = words_of(*command.launcher);
    options.local = false;
    if (options.launcher.empty()) throw InputError("--launcher: is blank");
  } else if (several_ranks) {
    options.launcher = {find_mpiexec(), "-n"};
  }
  return options;
}

/// Returns the runs of block K of N: run K, K + N, K + 2 N, ..., so that each block has long and short runs.
std::vector<StudyRun> runs_of_block(const std::string& block, const std::vector<StudyRun>& runs) {
  const auto slash = block.find('/');
  std::errc error{};
  const auto number = parse_number<int>(block.substr(0, slash), error);
  const auto blocks = parse_number<int>(slash == std::string::npos ? "" : block.substr(slash + 1), error);
  if (!number || !blocks || *number < 1 || *number > *blocks)
    throw InputError(fmt::format("--block: expected K/N with K from 1 to N, got '{}'", block));
  std::vector<StudyRun> found;
  for (auto r = static_cast<std::size_t>(*number) - 1; r < runs.size();
       r += static_cast<std::size_t>(*blocks))
    found.push_back(runs[r]);
  return found;
}

void write_tables(const std::vector<nlohmann::ordered_json>& rows, const std::filesystem::path& folder) {
  write_file("-o", folder / "results.csv", rows_csv(rows));
  write_file("-o", folder / "results.jsonl", rows_jsonl(rows));
}

std::string summary(const StudyCounts& counts, std::size_t runs, const std::filesystem::path& folder) {
  std::string text = fmt::format("{}: {} done", counted_text(static_cast<std::int64_t>(runs), "run"),
                                 counts.done_before + counts.done);
  if (counts.done_before > 0) text += fmt::format(" ({} before)", counts.done_before);
  if (const int failed = counts.failed + counts.failed_before; failed > 0)
    text += fmt::format(", {} failed", failed);
  if (counts.failed_before > 0) text += fmt::format(" ({} before)", counts.failed_before);
  if (counts.elsewhere > 0) text += fmt::format(", {} run by another sweep", counts.elsewhere);
  return text +
         fmt::format("; {} and results.jsonl have a row for each\n", (folder / "results.csv").string());
}

/// Returns a line for each reason for which runs of this sweep have failed.
std::string failures(const Study& study, const std::vector<StudyRun>& runs,
                     const std::filesystem::path& folder) {
  struct Reason {
    std::string problem;
    std::string first;  ///< run
    int count = 0;
  };
  std::vector<Reason> reasons;
  for (const StudyRun& run : runs) {
    const RunOutcome outcome = read_outcome(study, folder_of(run, folder));
    if (outcome.state != RunState::failed) continue;
    const auto known = std::ranges::find(reasons, outcome.problem, &Reason::problem);
    ++(known == reasons.end() ? reasons.emplace_back(Reason{outcome.problem, run.title}) : *known).count;
  }
  std::string text;
  for (const auto& [problem, first, count] : reasons) {
    const std::string others = count > 1 ? fmt::format(" and {} more", count - 1) : "";
    text += fmt::format("failed: {}{}: {}\n", first, others, problem);
  }
  if (!text.empty())
    text += fmt::format("log.txt in the folder of each run, in {}, tells more; --retry runs them again\n",
                        (folder / "runs").string());
  return text;
}

int print_commands(const Study& study, const std::vector<StudyRun>& runs, const StudyOptions& options) {
  std::string text;
  for (const StudyRun& run : runs) {
    if (read_outcome(study, folder_of(run, options.folder)).state == RunState::done) continue;
    const std::array folder = {std::string("mkdir"), std::string("-p"),
                               folder_of(run, options.folder).string()};
    text += fmt::format("{} && {}\n", shell_text(folder),
                        shell_text(command_of(study, run, options, study.config)));
  }
  print(text);
  return 0;
}

/// Parses the command line of the run without its keys. `parsed`: the lines that were good.
void check_options(const Study& study, StudyRun run, std::set<std::vector<std::string>>& parsed) {
  std::erase_if(run.settings, [](const Setting& setting) { return !setting.is_option(); });
  std::vector<std::string> words = arguments_of(study, run, study.config, "");
  if (!parsed.insert(words).second) return;
  CLI::App app;
  const Action action = add_subcommands(app);
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::Success&) {
    throw InputError(fmt::format("an option makes {} print something instead of running", study.command));
  } catch (const CLI::ParseError& error) {
    throw InputError(fmt::format("{} (see starpipe {} --help)", error.what(), study.command));
  }
}

/// Refuses what the command of a study would refuse, as far as it is found quickly.
void check_run(const Study& study, const StudyRun& run, const runtime::Config& config) {
  const bool other_schedules =
      std::ranges::find(run.settings, "--schedules", &Setting::name) != run.settings.end();
  if (!config.schedule.file && !other_schedules) {
    for (const std::string& file : config.schedule.plugins) plan::load_plugin(file);
    plan::find_schedule(config.schedule.name);
  }
  if (study.command == "compare") {
    refuse_policy_in_compare(config);
  } else {
    runtime::describe_other_policy(config);  // finds the policy
  }
}

int sweep(const SweepOptions& command) {
  const Study study = read_study(command.study);
  std::set<std::vector<std::string>> parsed;  // most runs of a study have the same options
  const std::vector<StudyRun> all = runs_of(study, [&](const StudyRun& run, const runtime::Config& config) {
    check_options(study, run, parsed);
    check_run(study, run, config);
  });
  if (command.slurm) {
    take_folder(command.folder);  // Slurm writes its logs there
    print(sbatch_script(study, all, command.folder, *command.slurm));
    return 0;
  }
  const std::vector<StudyRun> runs = command.block ? runs_of_block(*command.block, all) : all;
  const StudyOptions options = options_of(command, all);
  if (command.print) return print_commands(study, runs, options);
  take_folder(options.folder);
  StudyCounts counts;
  if (!command.collect) {
    counts = run_study(study, runs, options);
  } else {
    for (const StudyRun& run : runs) {
      const RunState state = read_outcome(study, folder_of(run, options.folder)).state;
      counts.done_before += state == RunState::done ? 1 : 0;
      counts.failed_before += state == RunState::failed ? 1 : 0;
    }
  }
  const std::vector<nlohmann::ordered_json> rows = study_rows(study, all, options.folder);
  write_tables(rows, options.folder);
  if (!command.block && rows.size() <= max_printed_rows) print(rows_text(study, rows) + "\n");
  print(summary(counts, runs.size(), options.folder) + failures(study, runs, options.folder));
  return counts.failed + counts.failed_before > 0 ? 1 : 0;
}

}  // namespace

void add_sweep(CLI::App& app, Action& action) {
  CLI::App* const command = app.add_subcommand(
      "sweep", "Run a study: many runs of train, simulate, compare or sim, and one table of all");
  const auto options = std::make_shared<SweepOptions>();
  add_option(*command, "study STUDY.yaml", options->study, "The study: a base configuration, and what varies")
      ->required();
  add_option(
      *command, "-o,--output FOLDER", options->folder,
      "Folder of the results: results.csv, results.jsonl, and a folder for each run in runs/. Runs that "
      "are done there are not run again")
      ->required();
  CLI::Option* const jobs =
      add_option(*command, "--jobs N", options->jobs,
                 "Largest number of runs at a time. Runs that measure times get a share of the cores each",
                 whole_number(1, 1024))
          ->capture_default_str();
  CLI::Option* const retry = command->add_flag("--retry", options->retry, "Also run again what has failed");
  CLI::Option* const print = command->add_flag(
      "--print", options->print, "Print the commands of the runs that are not done, and run none");
  CLI::Option* const collect =
      command->add_flag("--collect", options->collect, "Write the tables of what is done, and run nothing");
  CLI::Option* const block =
      add_option(*command, "--block K/N", options->block, "Run only the K-th of N parts of the study");
  CLI::Option* const launcher = add_option(*command, "--launcher \"COMMAND -n\"", options->launcher,
                                           "Command that starts a run on several ranks; their number and the "
                                           "program follow. Default: mpiexec -n of starpipe's MPI");
  CLI::Option* const slurm =
      add_option(*command, "--slurm TASKS", options->slurm,
                 "Print a script for sbatch: an array of so many tasks, which divide the runs among them",
                 whole_number(1, 100'000));
  for (CLI::Option* const alone : {print, collect, slurm}) alone->excludes(jobs)->excludes(retry);
  print->excludes(collect)->excludes(slurm);
  collect->excludes(slurm)->excludes(launcher);
  slurm->excludes(block)->excludes(launcher);
  command->footer(
      "Examples:\n"
      "  starpipe sweep experiments/studies/schedules.yaml -o results/schedules --jobs 2\n"
      "  starpipe sweep experiments/studies/schedules.yaml -o results/schedules --slurm 4 | sbatch "
      "--time=1:00:00");
  command->callback([options, &action] { action = [options] { return sweep(*options); }; });
}

}  // namespace starpipe::cli
