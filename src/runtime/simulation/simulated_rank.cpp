// SPDX-License-Identifier: Apache-2.0
#include "runtime/simulation/simulated_rank.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <starpu.h>

#include "runtime/engine/engine.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/session/session.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// The copies that StarPU has made since the last call between memory nodes, for one GPU. Plain data.
struct Copies {
  std::uint64_t from_gpus = 0;
  std::uint64_t from_host = 0;
  std::uint64_t to_host = 0;
};

// By GPU of this rank, which has memory node 1 and the ones after it.
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

nlohmann::json to_json(const std::vector<JobRecord>& jobs) {
  nlohmann::json json = nlohmann::json::array();
  for (const JobRecord& job : jobs)
    json.push_back({job.job, job.worker, job.submitted, job.ready, job.start, job.end});
  return json;
}

nlohmann::json to_json(const std::vector<WorkerRecord>& workers) {
  nlohmann::json json = nlohmann::json::array();
  for (const WorkerRecord& worker : workers) {
    nlohmann::json& one = json.emplace_back(nlohmann::json{{"peak_stashes", worker.peak_stashes},
                                                           {"peak_stash_bytes", worker.peak_stash_bytes},
                                                           {"last_sum", worker.last_sum}});
    for (const plan::TransferKind& kind : plan::transfer_kinds) {
      const plan::Received& received = worker.received.*kind.member;
      one["received"][kind.key] = {received.count, received.bytes};
    }
  }
  return json;
}

}  // namespace

nlohmann::json run_simulated_rank(const Config& config, int steps) {
  const Mpi mpi;
  const Experiment experiment = make_experiment(config);
  const plan::Schedule& schedule = experiment.schedule;
  const WorkerMap map(schedule.workers(), mpi.ranks());
  const int workers = map.count(mpi.rank());
  const std::unique_ptr<Session> session = simulated_session(mpi, map, configured_policy(config));
  model::OptimizerConfig optimizer = config.training.optimizer;
  optimizer.schedule.steps = config.training.steps;
  Engine engine(*session, schedule, experiment.network, optimizer, {}, config.runtime,
                &experiment.emulated.value(), NonFinitePolicy::proceed);
  StepResult last;
  for (int step = 0; step < steps; ++step) {
    take_copies(workers);
    last = engine.run_step(step, *experiment.data);
  }
  const auto copies = gather_on_root<Copies>(mpi, take_copies(workers));
  const std::vector<GpuMemory> memory = engine.gpu_memory();
  const std::uint64_t sent = mpi.sum_on_root(engine.bytes_sent_by_starpu());
  if (mpi.rank() != 0) return nullptr;
  nlohmann::json peaks = nlohmann::json::array();
  for (const GpuMemory& gpu : memory) peaks.push_back(gpu.starpu_peak);
  nlohmann::json copied = nlohmann::json::array();
  for (const Copies& gpu : copies)
    copied.push_back({{"from_gpus", gpu.from_gpus}, {"from_host", gpu.from_host}, {"to_host", gpu.to_host}});
  return {{"seconds", last.seconds},          {"jobs", to_json(last.jobs)},
          {"workers", to_json(last.workers)}, {"peak_memory", std::move(peaks)},
          {"copied", std::move(copied)},      {"bytes_between_ranks", sent}};
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
