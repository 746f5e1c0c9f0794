// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "cli/study/study_runs.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::cli {

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

/// A value of an option in a line of #SBATCH. Slurm reads such a line as a shell does.
std::string option_text(const std::string& value) { return shell_text(std::array{value}); }

/// The logs of the tasks. Slurm replaces %A, %a and other patterns in the name, and %% by %.
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
