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
#include "runtime/report/report.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::runtime {
namespace {

// Inserting tasks takes no simulated time, but StarPU's polling does before the first job. The step begins
// with this job, so weights that others wait for have left when it began.
StepResult result_of(const SimulatedStep& step) {
  StepResult result;
  result.seconds = step.seconds;
  result.jobs = step.jobs;
  result.workers = step.workers;
  const double begin = std::ranges::min(result.jobs, {}, &JobRecord::start).start;
  for (JobRecord& job : result.jobs) job.submitted = std::min(std::max(job.submitted, begin), job.ready);
  return result;
}

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20U;
constexpr std::uint64_t block_of_starpu = 32 * mebibyte;

std::uint64_t whole_mebibytes(std::uint64_t bytes) { return bytes / mebibyte * mebibyte; }

// Returns the bytes that each worker needs, all of which are GPUs.
std::vector<std::uint64_t> needs_of(Config config, const Experiment& experiment, const plan::Costs& costs,
                                    const plan::Timeline& timeline) {
  config.runtime.device = {std::string(cuda_device)};
  std::vector<std::uint64_t> needs;
  for (const DeviceNeed& need : memory_need_of(config, experiment, costs, timeline))
    needs.push_back(need.peak.total());
  return needs;
}

}  // namespace

void check_gpu_memory(const Config& config, const Experiment& experiment, const Cluster& cluster,
                      const plan::Costs& costs) {
  const auto needs = needs_of(config, experiment, costs, plan::simulate(experiment.schedule, costs));
  const auto max = std::ranges::max_element(needs);
  const std::string problem =
      fmt::format("{}: gpu_memory: {}, but ", cluster.file.string(), bytes_text(cluster.gpu_memory));
  if (*max > whole_mebibytes(cluster.gpu_memory)) {
    throw InputError(fmt::format("{}worker {} needs {}, and StarPU counts whole MiB", problem,
                                 max - needs.begin(), bytes_text(*max)));
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
  auto step = result.get<SimulatedStep>();
  Measurement measurement(schedule, costs, /*known=*/true);
  measurement.begin_step();
  measurement.end_step(result_of(step));
  step.jobs.clear();
  ClusterRun run{.nodes = cluster.nodes(schedule.workers()),
                 .ranks = cluster.ranks(schedule.workers()),
                 .compared = measurement.compared(),
                 .simulated = std::move(step)};
  run.compared.found = "simulated";
  run.memory_need = needs_of(config, experiment, costs, run.compared.predicted.timeline);
  const TaskGraph graph(schedule, experiment.network, config.training.optimizer, experiment.rules);
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
      {"microbatches", schedule.whole_microbatches()},
      {"nodes", run.nodes},
      {"ranks", run.ranks},
      {"makespan", both(predicted.makespan, simulated.makespan)},
      {"bubble_fraction", both(predicted.bubble_fraction, simulated.bubble_fraction)},
      {"bytes_between_ranks", both(run.predicted_bytes_between_ranks, run.simulated.bytes_between_ranks)}};
  if (simulated.gradients_summed)
    report["gradients_summed"] = both(*predicted.gradients_summed, *simulated.gradients_summed);
  nlohmann::ordered_json& workers = report["workers"] = nlohmann::ordered_json::array();
  for (std::size_t w = 0; w < run.memory_need.size(); ++w) {
    const WorkerRecord& worker = run.simulated.workers.at(w);
    nlohmann::ordered_json& one = workers.emplace_back();
    one["peak_stashes"] = both(predicted.peak_stashes[w], worker.peak_stashes);
    one["peak_stash_bytes"] = both(predicted.peak_stash_bytes[w], worker.peak_stash_bytes);
    one["copied"] = nlohmann::json(run.simulated.copied.at(w));
    one["gpu_memory"] = both(run.memory_need[w], run.simulated.peak_memory.at(w));
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
