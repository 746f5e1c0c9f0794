// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/cluster_run.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/environment.hpp"
#include "base/numbers.hpp"
#include "plan/formats/compared_run_json.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/engine/memory_need.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/report/report.hpp"
#include "runtime/setup/expected_costs.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::runtime {
namespace {

// The step that rank 0 of the simulation has written.
StepResult read_step(const nlohmann::json& result) {
  StepResult step;
  step.seconds = result.at("seconds");
  for (const nlohmann::json& job : result.at("jobs")) {
    step.jobs.push_back({.job = job.at(0),
                         .worker = job.at(1),
                         .submitted = job.at(2),
                         .ready = job.at(3),
                         .start = job.at(4),
                         .end = job.at(5)});
  }
  // Inserting tasks takes no simulated time, but StarPU's polling does before the first job. The step begins
  // with this job, so weights that others wait for have left when it began.
  const double begin = std::ranges::min(step.jobs, {}, &JobRecord::start).start;
  for (JobRecord& job : step.jobs) job.submitted = std::min(std::max(job.submitted, begin), job.ready);
  for (const nlohmann::json& worker : result.at("workers")) {
    WorkerRecord& record = step.workers.emplace_back();
    record.peak_stashes = worker.at("peak_stashes");
    record.peak_stash_bytes = worker.at("peak_stash_bytes");
    record.last_sum = worker.at("last_sum");
    for (const plan::TransferKind& kind : plan::transfer_kinds) {
      const nlohmann::json& received = worker.at("received").at(std::string(kind.key));
      record.received.*kind.member = {.count = received.at(0), .bytes = received.at(1)};
    }
  }
  return step;
}

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20U;
constexpr std::uint64_t block_of_starpu = 32 * mebibyte;

std::uint64_t whole_mebibytes(std::uint64_t bytes) { return bytes / mebibyte * mebibyte; }

// By worker.
std::vector<WorkerMemory> needs_of(const Config& config, const Experiment& experiment,
                                   const plan::Costs& costs, const plan::Timeline& timeline) {
  const plan::Schedule& schedule = experiment.schedule;
  return memory_need(schedule, experiment.network, config.training.optimizer, costs, timeline,
                     {.devices = {}, .on_gpu = std::vector<bool>(index(schedule.workers()), true)},
                     step_rules(config, schedule.microbatches()));
}

}  // namespace

void check_gpu_memory(const Config& config, const Experiment& experiment, const Cluster& cluster,
                      const plan::Costs& costs) {
  const auto needs = needs_of(config, experiment, costs, plan::simulate(experiment.schedule, costs));
  const auto max = std::ranges::max_element(needs, {}, &WorkerMemory::total);
  const std::string problem =
      fmt::format("{}: gpu_memory: {}, but ", cluster.file.string(), bytes_text(cluster.gpu_memory));
  if (max->total() > whole_mebibytes(cluster.gpu_memory)) {
    throw InputError(fmt::format("{}worker {} needs {}, and StarPU counts whole MiB", problem,
                                 max - needs.begin(), bytes_text(max->total())));
  }
  // Otherwise StarPU waits for a block indefinitely.
  if (cluster.gpu_memory < block_of_starpu && environment("STARPU_SUBALLOCATOR").value_or("1") != "0") {
    throw InputError(fmt::format("{}StarPU takes blocks of {}; with STARPU_SUBALLOCATOR=0 it takes none",
                                 problem, bytes_text(block_of_starpu)));
  }
}

ClusterRun read_cluster_run(const Config& config, const Experiment& experiment, const Cluster& cluster,
                            const plan::Costs& costs, const nlohmann::json& result, int steps) {
  const plan::Schedule& schedule = experiment.schedule;
  Measurement measurement(schedule, costs_by_flops(experiment.network), costs);
  measurement.begin_step();
  measurement.end_step(read_step(result));
  ClusterRun run{.nodes = cluster.nodes(schedule.workers()),
                 .ranks = cluster.ranks(schedule.workers()),
                 .compared = measurement.compared()};
  run.compared.found = "simulated";
  const auto needs = needs_of(config, experiment, costs, run.compared.predicted.timeline);
  for (std::size_t w = 0; w < needs.size(); ++w) {
    const WorkerRecord& record = measurement.workers().at(w);
    run.workers.push_back({.received = record.received,
                           .peak_stashes = record.peak_stashes,
                           .peak_stash_bytes = record.peak_stash_bytes,
                           .peak_memory = result.at("peak_memory").at(w),
                           .memory_need = needs[w].total(),
                           .from_gpus = result.at("copied").at(w).at("from_gpus"),
                           .from_host = result.at("copied").at(w).at("from_host"),
                           .to_host = result.at("copied").at(w).at("to_host")});
  }
  const TaskGraph graph(schedule, experiment.network, config.training.optimizer,
                        step_rules(config, schedule.microbatches()));
  run.bytes_between_ranks = result.at("bytes_between_ranks");
  run.predicted_bytes_between_ranks = bytes_between_ranks(graph, WorkerMap(schedule.workers(), run.ranks)) *
                                      static_cast<std::uint64_t>(steps);
  return run;
}

nlohmann::ordered_json cluster_report(const ClusterRun& run) {
  const plan::Schedule& schedule = run.compared.predicted.planned;
  const plan::Timeline& predicted = run.compared.predicted.timeline;
  const plan::Timeline& simulated = run.compared.measured.timeline;
  const auto both = [](const auto& of_prediction, const auto& of_simulation) {
    return nlohmann::ordered_json{{"predicted", of_prediction}, {"simulated", of_simulation}};
  };
  nlohmann::ordered_json report = {
      {"schedule", schedule.name()},
      {"stages", schedule.stages()},
      {"microbatches", schedule.microbatches()},
      {"nodes", run.nodes},
      {"ranks", run.ranks},
      {"makespan", both(predicted.makespan, simulated.makespan)},
      {"bubble_fraction", both(predicted.bubble_fraction, simulated.bubble_fraction)},
      {"bytes_between_ranks", both(run.predicted_bytes_between_ranks, run.bytes_between_ranks)}};
  if (simulated.gradients_summed)
    report["gradients_summed"] = both(*predicted.gradients_summed, *simulated.gradients_summed);
  nlohmann::ordered_json& workers = report["workers"] = nlohmann::ordered_json::array();
  for (std::size_t w = 0; w < run.workers.size(); ++w) {
    const SimulatedWorker& worker = run.workers[w];
    nlohmann::ordered_json& one = workers.emplace_back();
    one["peak_activations"] = both(predicted.peak_stashes[w], worker.peak_stashes);
    one["peak_activation_bytes"] = both(predicted.peak_stash_bytes[w], worker.peak_stash_bytes);
    one["copied"] = {
        {"from_gpus", worker.from_gpus}, {"from_host", worker.from_host}, {"to_host", worker.to_host}};
    one["gpu_memory"] = both(worker.memory_need, worker.peak_memory);
    for (const plan::TransferKind& kind : plan::transfer_kinds) {
      const auto& [count, bytes] = predicted.received[w].*kind.member;
      const plan::Received& found = worker.received.*kind.member;
      one["received"][kind.key] = {{"count", both(count, found.count)}, {"bytes", both(bytes, found.bytes)}};
    }
  }
  report["explain"] = plan::compared_run_json(run.compared);
  return report;
}

}  // namespace starpipe::runtime
