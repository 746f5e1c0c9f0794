// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/signals.hpp"
#include "cli/input/input_files.hpp"
#include "cli/processes/launchers.hpp"
#include "cli/processes/processes.hpp"
#include "model/reference.hpp"
#include "model/weights.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::cli {
namespace {

using nlohmann::json;
using plan::Finding;
using Outcome = plan::Finding::Outcome;

constexpr std::chrono::seconds max_to_start{20};

std::string configuration(const std::string& plugin, const std::string& name, int workers, int stages,
                          std::optional<int> groups) {
  json config = {{"model", {{"kind", "mlp"}, {"layers", stages}, {"hidden", 8}}},
                 {"training", {{"microbatches", 4}, {"microbatch_size", 2}, {"steps", 3}}},
                 {"schedule", {{"plugin", plugin}, {"name", name}, {"workers", workers}, {"stages", stages}}},
                 {"runtime", {{"timeout", 30}, {"workers_per_core", workers}}}};
  if (groups) config["schedule"]["groups"] = *groups;
  return config.dump();
}

/// Tries several numbers of workers, stages and groups, and writes the first configuration that the schedule
/// accepts to `file`. Returns its description and the losses of a sequential run, or the first refusal.
json prepare(const std::string& plugin, const std::string& name, const std::string& file) {
  std::string refusal;
  for (const int workers : {2, 4, 3}) {
    for (const std::optional<int> groups : {std::optional<int>{}, std::optional<int>{2}}) {
      for (const int stages : std::set{workers, 2 * workers}) {
        write_file("plugin check", file, configuration(plugin, name, workers, stages, groups));
        try {
          const runtime::Config config = load_config(file, {});
          const runtime::Experiment experiment = runtime::make_experiment(config);
          const auto run =
              model::train_reference(experiment.network, *experiment.data, config.training.optimizer,
                                     model::start_parameters(experiment.network, config.training.seed),
                                     experiment.schedule.microbatches(), config.training.steps);
          return {{"losses", run.losses}, {"what", fmt::format("W={} B=4 S={}", workers, stages)}};
        } catch (const InputError& error) {
          if (refusal.empty()) refusal = error.what();
        }
      }
    }
  }
  return {{"refusal", refusal}};
}

/// Returns the error message of starpipe, or else the last line of the output.
std::string complaint(const SubprocessResult& run) {
  std::istringstream lines(run.output);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("starpipe: ")) return line;
    if (!line.empty()) last = line;
  }
  return last.empty() ? run.failure : fmt::format("{}: {}", run.failure, last);
}

/// Returns the command that starts MPI ranks; if there is none, the reason is in `problem`.
std::optional<std::string> find_launcher(std::string& problem) {
  if (runtime::launcher_rank()) {
    problem = "this command was itself started by an MPI launcher";
    return std::nullopt;
  }
  problem = "there is no mpiexec on PATH";
  for (const char* name : mpi_launchers) {
    const SubprocessResult run = run_program({name, "-n", "2", "true"}, max_to_start);
    if (run.failure.empty()) return name;
    if (!run.output.empty()) problem = fmt::format("{} does not start: {}", name, complaint(run));
  }
  return std::nullopt;
}

Finding compare(const json& expected, const json& report) {
  const std::string& what = expected.at("what").get_ref<const std::string&>();
  if (report.at("machine").at("ranks") != 2) {
    return {Outcome::does_not_apply, "not run: the mpiexec on PATH belongs to another MPI than starpipe's"};
  }
  const auto wanted = expected.at("losses").get<std::vector<double>>();
  const auto found = report.at("losses").get<std::vector<double>>();
  for (std::size_t step = 0; step < wanted.size(); ++step) {
    // The negation of "close": a loss that is NaN fails too.
    if (std::abs(found.at(step) - wanted[step]) <= 1e-5 * std::abs(wanted[step])) continue;
    return {Outcome::failed, fmt::format("{}: in step {} the loss is {}, in a sequential run {}", what, step,
                                         found[step], wanted[step])};
  }
  return {Outcome::passed,
          fmt::format("{}: {} steps on the engine, losses as of a sequential run", what, wanted.size())};
}

}  // namespace

Finding train_on_two_ranks(const std::string& plugin, const std::string& name, std::chrono::seconds max) {
  const HeldSignals held;  // until the folder is removed
  const TemporaryFolder folder;
  const std::string config = folder / "config.yaml";
  const std::string report = folder / "report.json";
  const SubprocessResult prepared =
      run_in_subprocess([&] { return prepare(plugin, name, config).dump(); }, max);
  if (!prepared.failure.empty()) return {Outcome::failed, prepared.failure};
  const json expected = json::parse(prepared.output);
  if (expected.contains("refusal")) {
    return {Outcome::failed, fmt::format("no request for 2, 3 or 4 workers can be trained: {}",
                                         expected.at("refusal").get<std::string>())};
  }
  std::string problem;
  const auto launcher = find_launcher(problem);
  if (!launcher) return {Outcome::does_not_apply, "not run: " + problem};
  const SubprocessResult run =
      run_program({*launcher, "-n", "2", std::filesystem::read_symlink("/proc/self/exe").string(), "train",
                   config, "--report", report},
                  max);
  if (!run.failure.empty()) {
    return {Outcome::failed, fmt::format("{}: {}", expected.at("what").get<std::string>(), complaint(run))};
  }
  return compare(expected, json::parse(read_file(report)));
}

}  // namespace starpipe::cli
