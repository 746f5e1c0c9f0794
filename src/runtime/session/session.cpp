// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/session.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <cblas.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <starpu.h>
#include <starpu_mpi.h>
#include <unistd.h>

#include "runtime/hardware/cuda_devices.hpp"
#include "runtime/session/core_share.hpp"
#include "runtime/session/mpi_polling.hpp"
#include "sched/starpu_policy.hpp"
#include "starpipe/base/environment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// StarPU-MPI prints its statistics to standard error when it shuts down; the report has them already.
class QuietStandardError {
 public:
  QuietStandardError() : saved_(dup(STDERR_FILENO)) {
    const int null = saved_ < 0 ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (null < 0) return;
    dup2(null, STDERR_FILENO);
    close(null);
  }
  ~QuietStandardError() {
    if (saved_ < 0) return;
    dup2(saved_, STDERR_FILENO);
    close(saved_);
  }
  QuietStandardError(const QuietStandardError&) = delete;
  QuietStandardError& operator=(const QuietStandardError&) = delete;

 private:
  int saved_;
};

// One CPU worker for each of `workers` that has no GPU.
void take_devices(starpu_conf& conf, int workers, const GpuShare& gpus) {
  conf.ncpus = workers - gpus.workers_each * static_cast<int>(gpus.gpus.size());
  conf.ncuda = static_cast<int>(gpus.gpus.size());
  conf.nopencl = 0;
  conf.use_explicit_workers_cuda_gpuid = gpus.gpus.empty() ? 0 : 1;
  for (std::size_t i = 0; !gpus.gpus.empty() && i < std::size(conf.workers_cuda_gpuid); ++i) {
    conf.workers_cuda_gpuid[i] = static_cast<unsigned>(gpus.gpus[i % gpus.gpus.size()]);
  }
}

// StarPU's numbers of the workers that it started of a kind; neighbours on the same GPU, in whatever order
// StarPU numbers them.
std::vector<int> started_workers(starpu_worker_archtype kind) {
  std::vector<int> ids(static_cast<std::size_t>(starpu_worker_get_count_by_type(kind)));
  starpu_worker_get_ids_by_type(kind, ids.data(), static_cast<unsigned>(ids.size()));
  std::ranges::stable_sort(ids, {}, [](int id) { return starpu_worker_get_devid(id); });
  return ids;
}

// By place; fewer where StarPU started fewer.
std::vector<int> workers_by_place(int workers, const GpuShare& gpus) {
  const std::vector<int> on_gpus = started_workers(STARPU_CUDA_WORKER);
  const std::vector<int> on_cores = started_workers(STARPU_CPU_WORKER);
  auto gpu = on_gpus.begin();
  auto core = on_cores.begin();
  std::vector<int> ids;
  for (int place = 0; place < workers; ++place) {
    auto& next = gpus.has(place) ? gpu : core;
    if (next == (gpus.has(place) ? on_gpus : on_cores).end()) break;
    ids.push_back(*next++);
  }
  return ids;
}

}  // namespace

Session::Session(const Mpi& mpi, const WorkerMap& map, const CoreShare& share, PolicyChoice policy,
                 const GpuShare& gpus)
    : mpi_(mpi), map_(map), choice_(std::move(policy)) {
  if (share.crowded() && mpi.ranks() > 1) {
    poll_mpi(choice_.starpu == sched::policy_name ? Polling::yielding : Polling::napping);
  } else {
    poll_mpi(Polling::eager);
  }
  set_default_environment("STARPU_SILENT", "1");
  set_default_environment("STARPU_MPI_STATS", "1");
  set_default_environment("STARPU_MPI_NOBIND", "1");
  // A GPU's worker takes a task when the one before has ended, as the policy and the meter see it.
  set_default_environment("STARPU_CUDA_PIPELINE", "1");
  // Where few buffers of a GPU are clean, which is usual, StarPU would copy stashes and weights to the host.
  if (!gpus.gpus.empty()) set_default_environment("STARPU_MINIMUM_CLEAN_BUFFERS", "0");
  openblas_set_num_threads(1);

  // The choice is made. StarPU would let STARPU_SCHED win over it, and warn of our name in other libraries.
  const ScopedVariable policy_name("STARPU_SCHED", std::nullopt);
  std::optional<ScopedVariable> library;
  if (!choice_.from_library) library.emplace("STARPU_SCHED_LIB", std::nullopt);
  starpu_conf conf;
  starpu_conf_init(&conf);
  conf.precedence_over_environment_variables = 1;
  const int workers = map.count(mpi.rank());
  if (!gpus.gpus.empty()) use_gpu(gpus.gpus.front());
  for (const int gpu : gpus.gpus)
    device_memory_.push_back({.rank = mpi.rank(), .gpu = gpu, .driver_before = gpu_bytes_in_use(gpu)});
  const ScopedVariable streams("STARPU_NWORKER_PER_CUDA", std::to_string(gpus.workers_each));
  take_devices(conf, workers, gpus);
  conf.catch_signals = 0;
  std::optional<ScopedVariable> unbound;
  if (share.worker_pus.empty()) {
    // StarPU by itself would bind the workers of several ranks to the same cores.
    if (!user_binds_workers()) unbound.emplace("STARPU_WORKERS_NOBIND", "1");
  } else {
    binding_.emplace(share.binding);
    conf.use_explicit_workers_bindid = 1;
    const std::vector<unsigned> order = cores_in_order(share.worker_pus, gpus);
    for (std::size_t i = 0; i < std::size(conf.workers_bindid); ++i)
      conf.workers_bindid[i] = order[i % order.size()];
  }
  starpu_sched_policy ours = sched::starpipe_policy();
  if (choice_.starpu == sched::policy_name) {
    conf.sched_policy = &ours;
  } else {
    conf.sched_policy_name = choice_.starpu.c_str();
  }
  const int status = starpu_mpi_init_conf(nullptr, nullptr, 0, MPI_COMM_WORLD, &conf);
  if (status != 0) throw std::runtime_error(fmt::format("StarPU does not start (error {})", status));
  if (!gpus.gpus.empty()) use_gpu(gpus.gpus.front());  // where it has measured links, it left another

  std::string problem;
  policy_ = starpu_sched_get_sched_policy()->policy_name;
  core_ = sched::active_policy_core();
  if (policy_ != choice_.starpu) {
    problem = fmt::format("policy '{}' was asked for, but StarPU runs '{}'", choice_.name, policy_);
  }
  starpu_ids_ = workers_by_place(workers, gpus);
  if (std::ssize(starpu_ids_) < workers && problem.empty()) {
    problem = fmt::format("rank {}: StarPU started {} CUDA and {} CPU workers for {}", mpi.rank(),
                          starpu_cuda_worker_get_count(), starpu_cpu_worker_get_count(), workers);
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) {
    const QuietStandardError quiet;
    starpu_mpi_shutdown();
    throw InputError(problem);
  }
  if (!gpus.gpus.empty()) cublas_.emplace();
  for (DeviceMemory& memory : device_memory_) memory.driver_initialised = gpu_bytes_in_use(memory.gpu);
  logical_.assign(starpu_worker_get_count(), -1);
  for (std::size_t i = 0; i < starpu_ids_.size(); ++i) {
    const int place = map.first(mpi.rank()) + static_cast<int>(i);
    logical_[static_cast<std::size_t>(starpu_ids_[i])] = map.worker(place);
  }
}

std::vector<int> Session::memory_nodes() const {
  std::vector<int> nodes(static_cast<std::size_t>(map_.workers()), -1);
  for (int worker = 0; worker < map_.workers(); ++worker) {
    if (!is_local(worker)) continue;
    nodes[static_cast<std::size_t>(worker)] =
        static_cast<int>(starpu_worker_get_memory_node(static_cast<unsigned>(starpu_worker(worker))));
  }
  return nodes;
}

Session::~Session() {
  cublas_.reset();
  const QuietStandardError quiet;
  starpu_mpi_shutdown();
}

}  // namespace starpipe::runtime
