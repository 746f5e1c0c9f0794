// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/environment.hpp"
#include "base/files.hpp"
#include "cli/input/input_files.hpp"
#include "cli/options/options.hpp"
#include "cli/study/study.hpp"
#include "runtime/config/config_keys.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/random.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::cli {
namespace {

constexpr std::size_t max_runs = 100'000;

/// Returns the settings of each run but for `set`: an entry of `runs`, and a point of the grid.
std::vector<Settings> combinations(const Study& study) {
  std::vector<Settings> points = study.runs;
  for (const GridLine& line : study.grid) {
    if (points.size() * line.size() > max_runs)
      throw InputError(fmt::format("{}: grid: more than {} runs", study.source, max_runs));
    std::vector<Settings> wider;
    for (const Settings& point : points) {
      for (const Settings& value : line) {
        wider.push_back(point);
        wider.back().insert(wider.back().end(), value.begin(), value.end());
      }
    }
    points = std::move(wider);
  }
  return points;
}

std::vector<std::string> overrides_of(const Settings& settings) {
  std::vector<std::string> overrides;
  for (const Setting& setting : settings) {
    if (!setting.is_option() && setting.name != ranks_setting)
      overrides.push_back(setting.name + "=" + setting.value);
  }
  return overrides;
}

/// Returns each option as one word. A flag that is off has none.
std::vector<std::string> options_of(const Settings& settings) {
  std::vector<std::string> options;
  for (const auto& [name, value] : settings) {
    if (!name.starts_with("--") || value == "false") continue;
    options.push_back(value == "true" ? name : name + "=" + value);
  }
  return options;
}

/// Returns "name=1f1b": the last part of the setting's name, in characters that shells leave alone.
std::string short_text(const Setting& setting) {
  std::string text = setting.name.substr(setting.name.find_last_of(".-") + 1) + "=" + setting.value;
  for (char& c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!plain && std::string_view("=._+-").find(c) == std::string_view::npos) c = '_';
  }
  return text;
}

/// Returns the name of the run's folder. `hash` stands for all that the run does.
std::string name_of(const StudyRun& run, bool repeated, std::uint64_t hash) {
  constexpr std::size_t max = 120;
  std::vector<std::string> parts;
  for (const Setting& setting : run.varied) parts.push_back(short_text(setting));
  if (repeated) parts.push_back(fmt::format("repetition={}", run.repetition));
  const std::string text = fmt::format("{}", fmt::join(parts, "_")).substr(0, max);
  return fmt::format("{}{}{:08x}", text, text.empty() ? "" : "-", hash >> 32U);
}

std::string title_of(const StudyRun& run, bool repeated) {
  std::vector<std::string> parts;
  for (const Setting& setting : run.varied) parts.push_back(setting.name + "=" + setting.value);
  if (repeated) parts.push_back(fmt::format("repetition {}", run.repetition));
  return parts.empty() ? "the only run" : fmt::format("{}", fmt::join(parts, ", "));
}

int ranks_of(const Settings& settings) {
  const auto found = std::ranges::find(settings, ranks_setting, &Setting::name);
  return found == settings.end() ? 1 : std::stoi(found->value);
}

/// Returns the number of workers of a run. A file of a schedule has its own number, and shards have workers
/// of their own. A schedule that cannot be made has 1: its run fails, and says why.
int workers_of(const runtime::Config& config) {
  if (!config.schedule.file && !config.model.options.contains(model::tensor_key))
    return config.schedule.workers.value_or(1);
  runtime::Config planned = config;
  // The runs compute in processes of their own.
  planned.runtime.instructions = runtime::native_instructions;
  try {
    return runtime::plan_run(planned).schedule.workers();
  } catch (const InputError&) {
    return 1;
  }
}

void load_plugins_of(const Settings& settings) {
  for (const Setting& setting : settings) {
    if (setting.name == "--plugin") plan::load_plugin(setting.value);
  }
}

/// Returns a value that changes with the content of a file. Larger files are known by their size: reading the
/// training data of every study would take too long.
nlohmann::json mark_of(const std::filesystem::path& file) {
  constexpr std::uintmax_t max_read_bytes = 16U << 20U;
  const std::uintmax_t bytes = std::filesystem::file_size(file);
  return {bytes, bytes <= max_read_bytes ? hash_of(read_file(file), hash_start) : 0};
}

using Marks = std::map<std::filesystem::path, nlohmann::json>;

/// Returns the marks of the files that the configuration and the options name, but for the configuration
/// itself: a run depends on them, and not on the files' names alone. `known`: of files that were read
/// already.
nlohmann::json marks_of(const runtime::Config& config, const Settings& settings, Marks& known) {
  std::vector<std::filesystem::path> files = inputs_of(config);
  std::erase(files, std::filesystem::path(config.source));
  for (const Setting& setting : settings) {
    if (setting.is_option()) files.emplace_back(setting.value);
  }
  nlohmann::json all = nlohmann::json::array();
  std::error_code error;
  for (const std::filesystem::path& file : files) {
    if (!std::filesystem::is_regular_file(file, error)) continue;
    const auto [mark, is_new] = known.try_emplace(file);
    if (is_new) mark->second = mark_of(file);
    all.push_back(mark->second);
  }
  return all;
}

}  // namespace

std::vector<StudyRun> runs_of(const Study& study, const RunCheck& check) {
  std::vector<StudyRun> runs;
  std::set<std::uint64_t> hashes;
  Marks marks;
  const bool repeated = study.repetitions > 1;
  for (const Settings& varied : combinations(study)) {
    StudyRun run{.settings = study.base, .varied = varied};
    std::ranges::copy(varied, std::back_inserter(run.settings));
    run.ranks = ranks_of(run.settings);
    std::uint64_t hash = 0;
    try {
      load_plugins_of(run.settings);
      const runtime::Config config = load_config(study.config, overrides_of(run.settings));
      check(run, config);
      run.workers = workers_of(config);
      nlohmann::json whole = {
          study.command, runtime::config_json(config),         options_of(run.settings), run.ranks,
          study.outputs, marks_of(config, run.settings, marks)};
      // It chooses the policy before the configuration does.
      if (const auto policy = environment("STARPU_SCHED")) whole.push_back(*policy);
      hash = hash_of(whole.dump(), hash_start);
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}: {}", study.source, title_of(run, false), error.what()));
    }
    for (run.repetition = 1; run.repetition <= study.repetitions; ++run.repetition) {
      const std::uint64_t whole = hash_of(static_cast<std::uint64_t>(run.repetition), hash);
      run.name = name_of(run, repeated, whole);
      run.title = title_of(run, repeated);
      if (!hashes.insert(whole).second)
        throw InputError(fmt::format("{}: two runs are the same: {}", study.source, run.title));
      runs.push_back(run);
    }
    if (runs.size() > max_runs)
      throw InputError(fmt::format("{}: more than {} runs", study.source, max_runs));
  }
  return runs;
}

std::vector<std::string> arguments_of(const Study& study, const StudyRun& run,
                                      const std::filesystem::path& config,
                                      const std::filesystem::path& folder) {
  std::vector<std::string> words = {study.command, config.string()};
  for (const std::string& override : overrides_of(run.settings)) {
    words.emplace_back("--set");
    words.push_back(override);
  }
  std::ranges::copy(options_of(run.settings), std::back_inserter(words));
  const bool has_report = study.command == "train" || study.command == "sim";
  words.emplace_back(has_report ? "--report" : "--output");
  words.push_back((folder / report_file).string());
  for (const StudyOutput& output : study_outputs) {
    if (std::ranges::find(study.outputs, output.name) == study.outputs.end()) continue;
    words.push_back(fmt::format("--{}", output.name));
    words.push_back((folder / output.file).string());
  }
  return words;
}

std::string shell_text(std::span<const std::string> command) {
  constexpr std::string_view plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  std::string text;
  for (const std::string& word : command) {
    if (!text.empty()) text += ' ';
    if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char letter : word) letter == '\'' ? text += "'\\''" : text += letter;
    text += '\'';
  }
  return text;
}

namespace {

/// Returns a value of an option in a line of #SBATCH. Slurm reads such a line as a shell does.
std::string option_text(const std::string& value) { return shell_text(std::array{value}); }

/// Returns the logs of the tasks. Slurm replaces %A, %a and other patterns in the name, and %% by %.
std::string log_pattern(const std::filesystem::path& folder) {
  std::string pattern;
  for (const char letter : std::filesystem::absolute(folder).string())
    pattern += letter == '%' ? "%%" : std::string(1, letter);
  return pattern + "/slurm-%A_%a.txt";
}

}  // namespace

std::string sbatch_script(const Study& study, std::span<const StudyRun> runs,
                          const std::filesystem::path& folder, int tasks) {
  int ranks = 1;
  int cores = 1;  // of a rank
  for (const StudyRun& run : runs) {
    ranks = std::max(ranks, run.ranks);
    if (takes_devices(study.command)) cores = std::max(cores, ceil_div(run.workers, run.ranks));
  }
  const std::filesystem::path here = std::filesystem::current_path();
  const std::array command = {std::filesystem::read_symlink("/proc/self/exe").string(), std::string("sweep"),
                              study.source, std::string("-o"), folder.string()};
  return fmt::format(R"(#!/usr/bin/env bash
# Written by `starpipe sweep --slurm`: an array of {0} tasks, each with its part of {1} runs.
# sbatch's own options and environment override the settings below.
#SBATCH --job-name={2}
#SBATCH --array=1-{0}
#SBATCH --ntasks={3}
#SBATCH --cpus-per-task={4}
#SBATCH --chdir={5}
#SBATCH --output={6}
set -euo pipefail
# Load here the modules or packages that starpipe's libraries need on your cluster (module load, spack load, ...).

export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-1}}
exec {7} --block "$SLURM_ARRAY_TASK_ID/{0}"{8}
)",
                     tasks, runs.size(), option_text(std::filesystem::path(study.source).stem().string()),
                     ranks, cores, option_text(here.string()), option_text(log_pattern(folder)),
                     shell_text(command),
                     ranks > 1 ? R"( --launcher "srun --mpi=pmi2 --cpu-bind=none --wait=60 -n")" : "");
}

}  // namespace starpipe::cli
