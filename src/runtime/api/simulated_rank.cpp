// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/simulated_rank.hpp"

#include <string>
#include <utility>

#include <starpu.h>

#include "runtime/api/training.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Returns the copies since the last call, by GPU of this rank, which has memory node 1 and the ones after it.
std::vector<Copies> take_copies(int gpus) {
  std::vector<Copies> all(index(gpus));
  for (int bus = 0; bus < starpu_bus_get_count(); ++bus) {
    starpu_profiling_bus_info info{};
    starpu_bus_get_profiling_info(bus, &info);  // and begins again
    const auto bytes = static_cast<std::uint64_t>(info.transferred_bytes);
    const int from = starpu_bus_get_src(bus) - 1;
    const int to = starpu_bus_get_dst(bus) - 1;
    if (from >= gpus || to >= gpus) continue;
    if (to < 0) {
      all[index(from)].to_host += bytes;
    } else {
      (from < 0 ? all[index(to)].from_host : all[index(to)].from_gpus) += bytes;
    }
  }
  return all;
}

// Returns a GPU for each worker of the rank.
GpuShare simulated_gpus(int workers, int rank) {
  GpuShare share;
  for (int gpu = 0; gpu < workers; ++gpu) {
    share.gpus.push_back(gpu);
    Device device;
    device.kind = DeviceKind::gpu;
    device.rank = rank;
    device.name = "cuda" + std::to_string(gpu);
    device.number = gpu;
    share.devices.emplace_back(std::move(device));
  }
  return share;
}

CoreShare simulated_cores(int workers) {
  return {.binding = {}, .cores = workers, .workers = workers, .exclusive = true, .worker_pus = {}};
}

// Returns the run of this rank, which trains `steps` steps. The ranks have the same configuration, from one
// file.
AgreedRun simulated_run(const Mpi& mpi, Config config, int steps) {
  Experiment experiment = make_experiment(config);
  experiment.rules.evaluated = 0;
  config.training.steps = steps;
  config.training.nonfinite = NonFinitePolicy::proceed;  // no values are computed
  const WorkerMap map(experiment.schedule.workers(), mpi.ranks());
  const int workers = map.count(mpi.rank());
  const plan::Costs costs = experiment.costs;
  return AgreedRun{
      {.config = std::move(config), .partition = std::nullopt, .experiment = std::move(experiment)},
      mpi,
      {},
      costs,
      map,
      simulated_cores(workers),
      simulated_gpus(workers, mpi.rank()),
      {},
      {}};
}

}  // namespace

nlohmann::json run_simulated_rank(const Config& config, int steps) {
  const Mpi mpi;
  const AgreedRun run = simulated_run(mpi, config, steps);
  const int workers = run.map.count(mpi.rank());
  Training training(run, configured_policy(config));
  Step last;
  for (int step = 0; step < steps; ++step) {
    if (step > 0) take_copies(workers);
    last = training.step();
  }
  SimulatedStep step = {
      .seconds = last.seconds, .jobs = std::move(last.jobs), .workers = training.measurement().workers()};
  step.copied = gather_on_root<Copies>(mpi, take_copies(workers));
  for (const GpuMemory& gpu : training.engine().gpu_memory()) step.peak_memory.push_back(gpu.starpu_peak);
  step.bytes_between_ranks = mpi.combine(training.engine().bytes_sent_by_starpu(), Combine::sum);
  return mpi.rank() == 0 ? nlohmann::json(step) : nlohmann::json();
}

std::unique_ptr<Session> simulated_session(const Mpi& mpi, const WorkerMap& map, PolicyChoice policy) {
  const int workers = map.count(mpi.rank());
  return std::make_unique<Session>(mpi, map, simulated_cores(workers), std::move(policy),
                                   simulated_gpus(workers, mpi.rank()));
}

}  // namespace starpipe::runtime
