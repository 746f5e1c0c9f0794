// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/simulated_rank.hpp"

#include <string>
#include <utility>

#include <starpu.h>

#include "runtime/engine/engine.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// The copies since the last call, by GPU of this rank, which has memory node 1 and the ones after it.
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

}  // namespace

nlohmann::json run_simulated_rank(const Config& config, int steps) {
  const Mpi mpi;
  const Experiment experiment = make_experiment(config);
  const plan::Schedule& schedule = experiment.schedule;
  const WorkerMap map(schedule.workers(), mpi.ranks());
  const int workers = map.count(mpi.rank());
  const std::unique_ptr<Session> session = simulated_session(mpi, map, configured_policy(config));
  Engine engine(*session, schedule, experiment.network, optimizer_of(config), {}, config.runtime,
                &experiment.costs, NonFinitePolicy::proceed);
  StepResult last;
  for (int step = 0; step < steps; ++step) {
    take_copies(workers);
    last = engine.run_step(step, *experiment.data);
  }
  SimulatedStep step = {
      .seconds = last.seconds, .jobs = std::move(last.jobs), .workers = std::move(last.workers)};
  step.copied = gather_on_root<Copies>(mpi, take_copies(workers));
  for (const GpuMemory& gpu : engine.gpu_memory()) step.peak_memory.push_back(gpu.starpu_peak);
  step.bytes_between_ranks = mpi.sum_on_root(engine.bytes_sent_by_starpu());
  return mpi.rank() == 0 ? nlohmann::json(step) : nlohmann::json();
}

namespace {

// A GPU for each worker of the rank.
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

}  // namespace

std::unique_ptr<Session> simulated_session(const Mpi& mpi, const WorkerMap& map, PolicyChoice policy) {
  const int workers = map.count(mpi.rank());
  const CoreShare cores{
      .binding = {}, .cores = workers, .workers = workers, .exclusive = true, .worker_pus = {}};
  return std::make_unique<Session>(mpi, map, cores, std::move(policy), simulated_gpus(workers, mpi.rank()));
}

}  // namespace starpipe::runtime
