// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/session.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include <cblas.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <starpu.h>
#include <starpu_mpi.h>
#include <unistd.h>

#include "runtime/hardware/devices.hpp"
#include "runtime/session/mpi_polling.hpp"
#include "sched/starpu_policy.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

void default_environment(const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); }

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// By StarPU's variables.
bool user_binds_workers() {
  return std::ranges::any_of(
      std::array{"STARPU_WORKERS_NOBIND", "STARPU_WORKERS_CPUID", "STARPU_WORKERS_COREID"},
      [](const char* name) { return !environment(name).empty(); });
}

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

// Sets a variable for its own lifetime, or hides it.
class WithVariable {
 public:
  WithVariable(const char* name, const std::string& value) : name_(name), before_(environment(name)) {
    set(value);
  }
  ~WithVariable() { set(before_); }
  WithVariable(const WithVariable&) = delete;
  WithVariable& operator=(const WithVariable&) = delete;

 private:
  void set(const std::string& value) {
    if (value.empty()) {
      unsetenv(name_);
    } else {
      setenv(name_, value.c_str(), /*overwrite=*/1);
    }
  }
  const char* name_;
  std::string before_;
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

Mpi::Mpi() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw std::runtime_error("this MPI does not provide MPI_THREAD_MULTIPLE");
  }
  MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &ranks_);
}

Mpi::~Mpi() {
  MPI_Comm_free(&comm_);
  MPI_Finalize();
}

void Mpi::barrier() const {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(comm_, &request);
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::vector<std::string> Mpi::gather(const std::string& mine) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  const int size = static_cast<int>(mine.size());
  std::vector<int> sizes(ranks);
  MPI_Allgather(&size, 1, MPI_INT, sizes.data(), 1, MPI_INT, comm_);
  std::vector<int> starts(ranks);
  std::exclusive_scan(sizes.begin(), sizes.end(), starts.begin(), 0);
  std::string all(static_cast<std::size_t>(starts.back() + sizes.back()), '\0');
  MPI_Allgatherv(mine.data(), size, MPI_CHAR, all.data(), sizes.data(), starts.data(), MPI_CHAR, comm_);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) {
    texts.push_back(all.substr(static_cast<std::size_t>(starts[r]), static_cast<std::size_t>(sizes[r])));
  }
  return texts;
}

void Mpi::abort(const std::string& message) const {
  fmt::print(stderr, "starpipe: rank {}: {}\n", rank_, message);
  std::fflush(stderr);
  // A launcher that is told to end the job does not always print what it was sent just before.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

std::string Mpi::first_problem(const std::string& mine) const {
  int candidate = mine.empty() ? ranks_ : rank_;
  int first = ranks_;
  MPI_Allreduce(&candidate, &first, 1, MPI_INT, MPI_MIN, comm_);
  if (first == ranks_) return {};
  std::array<char, 4096> message{};
  mine.copy(message.data(), message.size() - 1);
  MPI_Bcast(message.data(), static_cast<int>(message.size()), MPI_CHAR, first, comm_);
  return message.data();
}

WorkerMap::WorkerMap(int workers, int ranks)
    : ranks_(ranks), places_(static_cast<std::size_t>(workers)), workers_(places_.size()) {
  std::iota(places_.begin(), places_.end(), 0);
  workers_ = places_;
}

WorkerMap::WorkerMap(int ranks, std::vector<int> places)
    : ranks_(ranks), places_(std::move(places)), workers_(places_.size(), -1) {
  for (int worker = 0; worker < workers(); ++worker) {
    const int at = place(worker);
    if (at < 0 || at >= workers() || workers_[static_cast<std::size_t>(at)] >= 0) {
      throw std::logic_error("two workers in one place");
    }
    workers_[static_cast<std::size_t>(at)] = worker;
  }
}

CoreShare share_cores(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  if (mpi.ranks() > map.workers()) {
    throw InputError(fmt::format("schedule.workers: {} ranks for {} workers, some ranks would have none",
                                 mpi.ranks(), map.workers()));
  }
  const Hardware hardware = find_hardware();
  const auto on_cores = [&](int rank) {
    int count = 0;
    for (int i = 0; i < map.count(rank); ++i) count += config.on_gpu(map.worker(map.first(rank) + i)) ? 0 : 1;
    return count;
  };
  const int own_workers = on_cores(mpi.rank());
  // Not MPI_COMM_TYPE_SHARED: that follows the launcher, which may see several nodes on one host.
  const auto everybody = mpi.gather(nlohmann::json{hardware.host, hardware.binding}.dump());
  std::vector<Tenant> here;
  std::vector<Tenant> on_cores_here;
  std::size_t self = 0;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    const auto words = nlohmann::json::parse(everybody[static_cast<std::size_t>(rank)]);
    if (words[0] != hardware.host) continue;
    if (rank == mpi.rank()) self = here.size();
    here.push_back({words[1].get<std::string>(), map.count(rank)});
    on_cores_here.push_back({here.back().binding, on_cores(rank)});
  }
  CoreShare share = Topology::host().share(here, self);
  if (user_binds_workers()) {
    share.binding = hardware.binding;
    share.worker_pus.clear();
  }

  std::string problem;
  const std::string allowed = environment("STARPU_NCPU");
  // Threads that drive GPUs have cores too, but wait there.
  const int computing = config.emulate ? 0 : Topology::host().share(on_cores_here, self).workers;
  if (computing > share.cores * config.workers_per_core) {
    problem = fmt::format(
        "schedule.workers: {} workers put {} on the {} cores of {}, which carry at most {} "
        "(runtime.workers_per_core: {})",
        map.workers(), computing, share.cores, hardware.machine, share.cores * config.workers_per_core,
        config.workers_per_core);
  } else if (!allowed.empty() && std::atoi(allowed.c_str()) < own_workers) {
    problem = fmt::format("schedule.workers: rank {} carries {} workers, but STARPU_NCPU allows {}",
                          mpi.rank(), own_workers, allowed);
  } else if (own_workers > STARPU_MAXCPUS) {
    problem =
        fmt::format("schedule.workers: rank {} would carry {} workers, StarPU was built for {} a process",
                    mpi.rank(), own_workers, STARPU_MAXCPUS);
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) throw InputError(problem);
  return share;
}

std::vector<unsigned> cores_in_order(std::span<const unsigned> pus, const GpuShare& gpus) {
  std::vector<unsigned> drivers;
  std::vector<unsigned> computing;
  std::vector<unsigned> rest;
  std::set<int> seen;
  for (std::size_t place = 0; place < pus.size(); ++place) {
    const bool on_gpu = gpus.has(static_cast<int>(place));
    const bool drives = on_gpu && seen.insert(gpus.devices[place]->number).second;
    (drives ? drivers : on_gpu ? rest : computing).push_back(pus[place]);
  }
  drivers.insert(drivers.end(), computing.begin(), computing.end());
  drivers.insert(drivers.end(), rest.begin(), rest.end());
  return drivers;
}

std::vector<RankPlace> gather_places(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                                     std::span<const Device> devices) {
  std::vector<std::string> names;
  for (const Device& device : devices) names.push_back(device.name);
  const auto everybody =
      mpi.gather(nlohmann::json{find_hardware().machine, share.binding, Topology::host().cores(share.binding),
                                !share.worker_pus.empty(), names}
                     .dump());
  std::vector<RankPlace> places;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    const auto words = nlohmann::json::parse(everybody[static_cast<std::size_t>(rank)]);
    places.push_back({words[0], words[1], words[2], map.count(rank), words[3], {}, words[4]});
    for (int i = 0; i < map.count(rank); ++i)
      places.back().logical_workers.push_back(map.worker(map.first(rank) + i));
  }
  return places;
}

Session::Session(const Mpi& mpi, const WorkerMap& map, const CoreShare& share, PolicyChoice policy,
                 const GpuShare& gpus)
    : mpi_(mpi), map_(map), choice_(std::move(policy)) {
  if (share.crowded() && mpi.ranks() > 1) {
    poll_mpi(choice_.starpu == sched::policy_name ? Polling::yielding : Polling::napping);
  } else {
    poll_mpi(Polling::eager);
  }
  default_environment("STARPU_SILENT", "1");
  default_environment("STARPU_MPI_STATS", "1");
  default_environment("STARPU_MPI_NOBIND", "1");
  // A GPU's worker takes a task when the one before has ended, as the policy and the meter see it.
  default_environment("STARPU_CUDA_PIPELINE", "1");
  // Where few buffers of a GPU are clean, which is usual, StarPU would copy stashes and weights to the host.
  if (!gpus.gpus.empty()) default_environment("STARPU_MINIMUM_CLEAN_BUFFERS", "0");
  openblas_set_num_threads(1);

  // The choice is made. StarPU would let STARPU_SCHED win over it, and warn of our name in other libraries.
  const WithVariable policy_name("STARPU_SCHED", "");
  std::optional<WithVariable> library;
  if (!choice_.from_library) library.emplace("STARPU_SCHED_LIB", "");
  starpu_conf conf;
  starpu_conf_init(&conf);
  conf.precedence_over_environment_variables = 1;
  const int workers = map.count(mpi.rank());
  if (!gpus.gpus.empty()) use_gpu(gpus.gpus.front());
  for (const int gpu : gpus.gpus)
    device_memory_.push_back({.rank = mpi.rank(), .gpu = gpu, .driver_before = gpu_bytes_in_use(gpu)});
  const WithVariable streams("STARPU_NWORKER_PER_CUDA", std::to_string(gpus.workers_each));
  take_devices(conf, workers, gpus);
  conf.catch_signals = 0;
  std::optional<WithVariable> unbound;
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
