// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <unistd.h>

#include <cblas.h>
#include <fmt/format.h>
#include <starpu.h>
#include <starpu_mpi.h>

#include "hardware.hpp"
#include "mpi_polling.hpp"
#include "sched/starpu_policy.hpp"
#include "starpipe/plan/error.hpp"

namespace starpipe::runtime {
namespace {

void default_environment(const char* name, const char* value) { setenv(name, value, /*overwrite=*/0); }

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
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

// Hides a variable for its own lifetime.
class WithoutVariable {
 public:
  explicit WithoutVariable(const char* name) : name_(name), value_(environment(name)) { unsetenv(name); }
  ~WithoutVariable() {
    if (!value_.empty()) setenv(name_, value_.c_str(), /*overwrite=*/1);
  }
  WithoutVariable(const WithoutVariable&) = delete;
  WithoutVariable& operator=(const WithoutVariable&) = delete;

 private:
  const char* name_;
  std::string value_;
};

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

CoreShare share_cores(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  if (mpi.ranks() > map.workers()) {
    throw InputError(fmt::format("schedule.workers: {} ranks for {} workers, some ranks would have none",
                                 mpi.ranks(), map.workers()));
  }
  const Hardware hardware = find_hardware();
  const int own_workers = map.count(mpi.rank());
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(mpi.comm(), MPI_COMM_TYPE_SHARED, mpi.rank(), MPI_INFO_NULL, &node);
  int node_ranks = 1;
  MPI_Comm_size(node, &node_ranks);
  const std::array<unsigned long, 2> mine = {std::hash<std::string>{}(hardware.binding),
                                             static_cast<unsigned long>(own_workers)};
  std::vector<unsigned long> all(2 * static_cast<std::size_t>(node_ranks));
  MPI_Allgather(mine.data(), 2, MPI_UNSIGNED_LONG, all.data(), 2, MPI_UNSIGNED_LONG, node);
  MPI_Comm_free(&node);
  CoreShare share{hardware.cores, 0, 0};
  for (std::size_t r = 0; r < all.size(); r += 2) {
    if (all[r] != mine[0]) continue;
    share.workers += static_cast<int>(all[r + 1]);
    ++share.ranks;
  }

  std::string problem;
  const std::string allowed = environment("STARPU_NCPU");
  if (!config.emulate && share.workers > share.cores * config.workers_per_core) {
    problem = fmt::format(
        "schedule.workers: {} workers put {} on the {} cores of {}, which carry at most {} "
        "(runtime.workers_per_core: {})",
        map.workers(), share.workers, share.cores, hardware.machine, share.cores * config.workers_per_core,
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

Session::Session(const Mpi& mpi, const WorkerMap& map, const CoreShare& share, PolicyChoice policy)
    : mpi_(mpi), map_(map), choice_(std::move(policy)) {
  poll_mpi_gently(share.crowded() && mpi.ranks() > 1);
  default_environment("STARPU_SILENT", "1");
  default_environment("STARPU_MPI_STATS", "1");
  default_environment("STARPU_MPI_NOBIND", "1");
  // Several ranks would all bind to the first cores; alone on the cores, StarPU may bind.
  if (share.ranks > 1 || share.crowded()) default_environment("STARPU_WORKERS_NOBIND", "1");
  openblas_set_num_threads(1);

  // The choice is made. StarPU would let STARPU_SCHED win over it, and warn of our name in other libraries.
  const WithoutVariable policy_name("STARPU_SCHED");
  std::optional<WithoutVariable> library;
  if (!choice_.from_library) library.emplace("STARPU_SCHED_LIB");
  starpu_conf conf;
  starpu_conf_init(&conf);
  conf.precedence_over_environment_variables = 1;
  conf.ncpus = map.count(mpi.rank());
  conf.ncuda = 0;
  conf.nopencl = 0;
  conf.catch_signals = 0;
  starpu_sched_policy ours = sched::starpipe_policy();
  if (choice_.starpu == sched::policy_name) {
    conf.sched_policy = &ours;
  } else {
    conf.sched_policy_name = choice_.starpu.c_str();
  }
  const int status = starpu_mpi_init_conf(nullptr, nullptr, 0, MPI_COMM_WORLD, &conf);
  if (status != 0) throw std::runtime_error(fmt::format("StarPU does not start (error {})", status));

  std::string problem;
  policy_ = starpu_sched_get_sched_policy()->policy_name;
  core_ = sched::active_policy_core();
  if (policy_ != choice_.starpu) {
    problem = fmt::format("policy '{}' was asked for, but StarPU runs '{}'", choice_.name, policy_);
  }
  starpu_ids_.resize(static_cast<std::size_t>(map.count(mpi.rank())));
  const unsigned found = starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, starpu_ids_.data(),
                                                       static_cast<unsigned>(starpu_ids_.size()));
  if (found < starpu_ids_.size() && problem.empty()) {
    problem =
        fmt::format("rank {}: StarPU started {} of {} CPU workers", mpi.rank(), found, starpu_ids_.size());
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) {
    const QuietStandardError quiet;
    starpu_mpi_shutdown();
    throw InputError(problem);
  }
  logical_.assign(starpu_worker_get_count(), -1);
  for (std::size_t i = 0; i < starpu_ids_.size(); ++i) {
    logical_[static_cast<std::size_t>(starpu_ids_[i])] = map.first(mpi.rank()) + static_cast<int>(i);
  }
}

Session::~Session() {
  const QuietStandardError quiet;
  starpu_mpi_shutdown();
}

}  // namespace starpipe::runtime
