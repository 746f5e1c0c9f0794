// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/session.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <starpu.h>
#include <starpu_mpi.h>

#include "base/environment.hpp"
#include "base/signals.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/cuda_devices.hpp"
#include "runtime/session/mpi_polling.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/sched/starpu_policy.hpp"

// Not in StarPU's headers. Weak: a StarPU without it prints its statistics.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" void _starpu_mpi_comm_amounts_shutdown() __attribute__((weak));

namespace starpipe::runtime {

namespace {

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

// Returns the workers of a kind that StarPU has started. The streams of one GPU are neighbours, in whatever
// order StarPU numbers them.
std::vector<int> started_workers(starpu_worker_archtype kind) {
  std::vector<int> ids(index(starpu_worker_get_count_by_type(kind)));
  starpu_worker_get_ids_by_type(kind, ids.data(), static_cast<unsigned>(ids.size()));
  std::ranges::stable_sort(ids, {}, [](int id) { return starpu_worker_get_devid(id); });
  return ids;
}

// Returns StarPU's workers by slot of this rank; fewer than `workers` when StarPU started fewer.
std::vector<int> workers_by_slot(int workers, const GpuShare& gpus) {
  const std::vector<int> on_gpus = started_workers(STARPU_CUDA_WORKER);
  const std::vector<int> on_cores = started_workers(STARPU_CPU_WORKER);
  auto gpu = on_gpus.begin();
  auto core = on_cores.begin();
  std::vector<int> ids;
  for (int slot = 0; slot < workers; ++slot) {
    auto& next = gpus.has(slot) ? gpu : core;
    if (next == (gpus.has(slot) ? on_gpus : on_cores).end()) break;
    ids.push_back(*next++);
  }
  return ids;
}

// Collective.
void choose_polling(const Mpi& mpi, const CoreShare& share, int workers, const PolicyChoice& choice) {
  Polling chosen = Polling::eager;
  patience = on_simgrid ? 1 : patience_for(share.workers + share.ranks, share.cores);
  if (share.oversubscribed() && mpi.ranks() > 1) {
    const bool alone = share.exclusive && choice.starpu == sched::policy_name;
    chosen = alone ? Polling::yielding : Polling::napping;
  }
  // Also a rank that does not wait so may send to one that does.
  const bool some_wait =
      !on_simgrid && mpi.ranks() > 1 && mpi.combine(index(patience.load()), Combine::max) > 1;
  if (some_wait && open_mailboxes(mpi) && patience > 1 && choice.starpu == sched::policy_name)
    chosen = Polling::called;
  const Topology& host = Topology::host();
  poll_mpi(chosen, std::min(workers, host.cores(share.binding)),
           user_binds_mpi_thread() ? "" : host.free_pus(share));
}

// Collective. Throws InputError if some rank has no folder for StarPU; rank 0 says a line if some rank has a
// folder of its own.
void require_starpu_folder(const Mpi& mpi) {
  StarpuFolder& folder = mpi.starpu_settings().folder;
  if (const std::string problem = mpi.first_problem(folder.problem); !problem.empty())
    throw InputError(problem);
  if (const std::string line = mpi.first_problem(std::exchange(folder.line, {})); !line.empty())
    mpi.say(line);
}

// Collective. Throws InputError if some rank cannot start its threads.
void require_threads(const Mpi& mpi, int count) {
  const std::string problem = mpi.first_problem(problem_of_threads(count));
  if (!problem.empty()) throw InputError(problem);
}

// Binds each of StarPU's threads to a core of its own.
void bind_workers(starpu_conf& conf, const CoreShare& share, const GpuShare& gpus) {
  conf.use_explicit_workers_bindid = 1;
  const std::vector<unsigned> order = cores_in_order(share.worker_pus, gpus);
  for (std::size_t i = 0; i < std::size(conf.workers_bindid); ++i)
    conf.workers_bindid[i] = order[i % order.size()];
}

std::atomic<const Mpi*> mpi_of_session = nullptr;

// Returns the last line of MPI's text, which names the cause. MPICH puts the functions that failed before it.
std::string cause_of(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  const std::string lines(text.data(), static_cast<std::size_t>(length));
  const std::size_t end = lines.find_last_not_of('\n');
  if (end == std::string::npos) return fmt::format("error {}", error);
  const std::size_t before = lines.find_last_of('\n', end);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return lines.substr(begin, end + 1 - begin);
}

// Any thread that calls MPI may come here. MPI wants a variadic function.
void end_run(MPI_Comm* comm, int* error, ...) {
  const Mpi* const mpi = mpi_of_session;
  if (mpi == nullptr) {
    MPI_Abort(*comm, 1);
    std::_Exit(1);  // MPI_Abort does not return
  }
  // The parent of a rank that was killed speaks after half a second. Then the ranks take turns, so that one
  // does.
  sleep_through_signals(std::chrono::milliseconds(1500 + 300 * std::min(mpi->rank(), 10)));
  mpi->abort(fmt::format("MPI has failed, as it does when another rank is lost: {}", cause_of(*error)));
}

}  // namespace

// SimGrid needs no handlers: its ranks are one process, so none is lost. Its MPI crashes when one handler
// replaces another.
MpiErrors::MpiErrors(const Mpi& mpi) : mpi_(mpi) {
  if (on_simgrid) return;
  mpi_of_session = &mpi;
  MPI_Comm_create_errhandler(end_run, &handler_);
}

void MpiErrors::watch() {
  if (on_simgrid) return;
  MPI_Comm_set_errhandler(mpi_.comm(), handler_);
  MPI_Comm_set_errhandler(mpi_.starpu_comm(), handler_);
}

MpiErrors::~MpiErrors() {
  if (on_simgrid) return;
  mpi_of_session = nullptr;
  MPI_Comm_set_errhandler(mpi_.comm(), MPI_ERRORS_ARE_FATAL);
  MPI_Comm_set_errhandler(mpi_.starpu_comm(), MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&handler_);
}

Session::Session(const Mpi& mpi, const WorkerMap& map, const CoreShare& share, PolicyChoice policy,
                 const GpuShare& gpus, bool copies)
    : mpi_(mpi), map_(map), binding_(share.binding), choice_(std::move(policy)), copies_(copies) {
  // This policy of StarPU's holds all tasks back until a wait for all of them. With several ranks, tasks wait
  // for tasks of other ranks before.
  require_input(mpi.ranks() == 1 || choice_.starpu != "graph_test", "runtime.policy",
                "graph_test works with one rank only");
  if (!on_simgrid) require_starpu_folder(mpi);
  choose_polling(mpi, share, map.count(mpi.rank()), choice_);
  if (!on_simgrid) write_values(share, gpus);
  if (!gpus.gpus.empty()) use_gpu(gpus.gpus.front());
  for (const int gpu : gpus.gpus)
    gpu_memory_.push_back({.rank = mpi.rank(), .gpu = gpu, .driver_before = gpu_bytes_in_use(gpu)});
  const int threads =
      map.count(mpi.rank()) + copy_workers() + 2;  // with the threads of StarPU-MPI and of the watchdog
  constexpr std::uint64_t bytes_for_thread = std::uint64_t{16} << 20U;  // StarPU aborts without its threads
  require_free_memory(bytes_for_thread * index(threads), "StarPU and the stacks of its threads");
  require_free_addresses(threads, "StarPU and its threads");
  if (!on_simgrid) require_threads(mpi, threads);
  start(share, gpus);
  mpi_errors_.watch();
  memory_guard_.emplace(mpi, gpus.gpus.empty() && !on_simgrid);
  // StarPU's measurement of links has left another GPU current.
  if (!gpus.gpus.empty()) use_gpu(gpus.gpus.front());
  check_start(gpus);
  clock_offset_ = measure_clock_offset(mpi);
  if (!gpus.gpus.empty()) {
    cublas_.emplace();
    gpu_buffers_.emplace();
  }
  for (GpuMemory& memory : gpu_memory_) memory.driver_initialised = gpu_bytes_in_use(memory.gpu);
  gpu_meters_ = std::make_unique<GpuMemoryMeters>(memory_nodes());
  orders_.assign(starpu_worker_get_count(), 0);
  logical_.assign(starpu_worker_get_count(), -1);
  for (const int worker : map.workers_of(mpi.rank())) logical_[index(starpu_worker(worker))] = worker;
}

void Session::write_values(const CoreShare& share, const GpuShare& gpus) {
  StarpuSettings& settings = mpi_.starpu_settings();
  hides_statistics_ = settings.hides_statistics() && environment("STARPU_MPI_STATS") == "1";
  // The policy is chosen already. StarPU would let STARPU_SCHED win over the choice. When the value is empty,
  // it takes the policy in its configuration, and does not open the library of STARPU_SCHED_LIB.
  values_.emplace_back(settings.policy, "");
  // When few buffers of a GPU are clean, which is usual, StarPU would copy stashes and weights to the host.
  if (!gpus.gpus.empty() && !settings.clean_buffers.was_set())
    values_.emplace_back(settings.clean_buffers, "0");
  if (!gpus.gpus.empty()) values_.emplace_back(settings.streams, std::to_string(gpus.workers_each));
  // StarPU by itself would bind the workers of several ranks to the same cores.
  if (share.worker_pus.empty() && !user_binds_workers()) values_.emplace_back(settings.no_binding, "1");
}

void Session::start(const CoreShare& share, const GpuShare& gpus) {
  starpu_conf conf;
  starpu_conf_init(&conf);
  conf.precedence_over_environment_variables = 1;
  conf.catch_signals = 0;
  take_devices(conf, map_.count(mpi_.rank()), gpus);
  conf.ncpus += copy_workers();
  if (!share.worker_pus.empty()) bind_workers(conf, share, gpus);
  starpu_sched_policy ours = sched::starpipe_policy();
  conf.sched_policy = choice_.starpu == sched::policy_name ? &ours : choice_.policy;
  conf.sched_policy_name = nullptr;
  const int status = starpu_mpi_init_conf(nullptr, nullptr, 0, mpi_.starpu_comm(), &conf);
  if (status != 0) throw std::runtime_error(fmt::format("StarPU does not start (error {})", status));
  // StarPU-MPI groups the sends of a datum to several ranks, which saves nothing on MPI. The thread that
  // drops the datum then reads the group while another thread may already have sent and freed it.
  if (mpi_.ranks() > 2) starpu_mpi_coop_sends_set_use(0);
  // The data of messages to the host are never read, so one piece of memory serves for all of them.
  if (on_simgrid) {
    starpu_malloc_on_node_set_default_flags(
        STARPU_MAIN_RAM, STARPU_MALLOC_PINNED | STARPU_MALLOC_COUNT | STARPU_MALLOC_SIMULATION_FOLDED);
  }
}

void Session::check_start(const GpuShare& gpus) {
  policy_ = starpu_sched_get_sched_policy()->policy_name;
  core_ = sched::active_policy_core();
  if (core_ != nullptr) {
    core_->call_when_idle(note_idle_worker);
    core_->be_patient(patience);
  }
  const int workers = map_.count(mpi_.rank());
  starpu_ids_ = workers_by_slot(workers, gpus);
  const std::vector<int> cores = started_workers(STARPU_CPU_WORKER);
  const auto computing = workers - gpus.workers_each * static_cast<int>(gpus.gpus.size());
  if (std::cmp_greater_equal(cores.size(), computing + copy_workers()))
    copy_ids_.assign(cores.begin() + computing, cores.begin() + computing + copy_workers());
  std::string problem;
  if (policy_ != choice_.starpu) {
    problem = fmt::format("policy '{}' was asked for, but StarPU runs '{}'", choice_.name, policy_);
  } else if (std::ssize(starpu_ids_) < workers || std::ssize(copy_ids_) < copy_workers()) {
    problem =
        fmt::format("rank {}: StarPU started {} CUDA and {} CPU workers for {}", mpi_.rank(),
                    starpu_cuda_worker_get_count(), starpu_cpu_worker_get_count(), workers + copy_workers());
  }
  problem = mpi_.first_problem(problem);
  if (problem.empty()) return;
  shut_down();
  throw InputError(problem);
}

std::vector<bool> Session::local_workers() const {
  std::vector<bool> local;
  for (int worker = 0; worker < map_.workers(); ++worker) local.push_back(is_local(worker));
  return local;
}

int Session::memory_node(int logical) const {
  return static_cast<int>(starpu_worker_get_memory_node(static_cast<unsigned>(starpu_worker(logical))));
}

std::vector<int> Session::memory_nodes() const {
  std::vector<int> nodes(index(map_.workers()), -1);
  for (const int worker : map_.workers_of(mpi_.rank())) nodes[index(worker)] = memory_node(worker);
  return nodes;
}

std::vector<GpuMemory> Session::gpu_memory() const {
  std::vector<GpuMemory> memory = gpu_memory_;
  gpu_meters_->write_to(memory);
  return memory;
}

// StarPU-MPI prints its statistics when it shuts down. The report has them already, so they are dropped
// first: the public function stops the counting, and without the counts there is nothing to print. Whether a
// rank drops them is its own choice, by its environment, so all ranks wait for each other before.
void Session::shut_down() {
  const EndWatch watch(mpi_);
  starpu_mpi_wait_for_all(mpi_.starpu_comm());
  if ((hides_statistics_ || on_simgrid) && _starpu_mpi_comm_amounts_shutdown != nullptr) {
    starpu_mpi_comm_stats_disable();
    _starpu_mpi_comm_amounts_shutdown();
  }
  starpu_mpi_shutdown();
  poll_mpi(Polling::eager);
  close_mailboxes();
}

Session::~Session() {
  gpu_buffers_.reset();
  cublas_.reset();
  shut_down();
}

}  // namespace starpipe::runtime
