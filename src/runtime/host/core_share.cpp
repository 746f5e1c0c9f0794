// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/core_share.hpp"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <starpu.h>

#include "runtime/host/hardware.hpp"
#include "runtime/host/core_advice.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/gather.hpp"
#include "base/environment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "base/messages.hpp"
#include "base/numbers.hpp"

namespace starpipe::runtime {
namespace {

// A rank's host and binding, which it sends to all others.
struct RankCores {
  std::string host;
  std::string binding;  // PUs
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankCores, host, binding)

// The ranks of this host.
struct HostRanks {
  std::vector<RankOnHost> ranks;
  std::vector<int> numbers;  // [index into ranks]
  std::size_t self = 0;      // this rank, as an index into `ranks`
};

HostRanks ranks_of_host(const Mpi& mpi, const WorkerMap& map, const Hardware& hardware) {
  // Not MPI_COMM_TYPE_SHARED: that follows the launcher, which may see several nodes on one host.
  const std::vector<RankCores> all =
      gather_all(mpi, RankCores{.host = hardware.host, .binding = hardware.binding});
  HostRanks here;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    const auto& [host, binding] = all[index(rank)];
    if (host != hardware.host) continue;
    if (rank == mpi.rank()) here.self = here.ranks.size();
    here.ranks.push_back({binding, map.count(rank)});
    here.numbers.push_back(rank);
  }
  return here;
}

CoreShare share_of(const HostRanks& here, const Hardware& hardware) {
  CoreShare share = Topology::host().share(here.ranks, here.self);
  if (user_binds_workers()) {
    share.binding = hardware.binding;
    share.worker_pus.clear();
    share.exclusive = here.ranks.size() == 1;
  }
  return share;
}

int workers_on_cores(const WorkerMap& map, const RuntimeConfig& config, int rank) {
  return static_cast<int>(
      std::ranges::count_if(map.workers_of(rank), [&](int worker) { return !config.on_gpu(worker); }));
}

std::optional<std::string_view> first_set(std::initializer_list<const char*> variables) {
  for (const char* name : variables) {
    if (!environment(name).value_or("").empty()) return name;
  }
  return std::nullopt;
}

}  // namespace

bool user_binds_workers() {
  return first_set({"STARPU_WORKERS_NOBIND", "STARPU_WORKERS_CPUID", "STARPU_WORKERS_COREID"}).has_value();
}

std::optional<std::string_view> user_binds_mpi_thread() {
  return first_set({"STARPU_MPI_THREAD_CPUID", "STARPU_MPI_THREAD_COREID"});
}

CoreShare divide_host(const Mpi& mpi, const WorkerMap& map) {
  const Hardware hardware = find_hardware();
  return share_of(ranks_of_host(mpi, map, hardware), hardware);
}

CoreShare share_cores(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  const Hardware hardware = find_hardware();
  const HostRanks here = ranks_of_host(mpi, map, hardware);
  CoreShare share = share_of(here, hardware);

  std::string problem;
  const std::optional<int> allowed = agree(mpi, [] { return environment_number("STARPU_NCPU"); });
  const int own_workers = workers_on_cores(map, config, mpi.rank());
  // Threads that drive GPUs have cores too, but wait there.
  int computing = 0;
  if (!config.emulate) {
    for (const std::size_t rank : neighbours(here.ranks, here.self))
      computing += workers_on_cores(map, config, here.numbers[rank]);
  }
  if (computing > share.cores * config.workers_per_core) {
    problem = fmt::format(
        "schedule.workers: {} workers put {} on {} of {}, with room for {} (runtime.workers_per_core: {})",
        map.workers(), computing, counted_text(share.cores, "core"), hardware.machine,
        share.cores * config.workers_per_core, config.workers_per_core);
  } else if (allowed.value_or(own_workers) < own_workers) {
    problem = fmt::format("schedule.workers: rank {} carries {} workers, but STARPU_NCPU allows {}",
                          mpi.rank(), own_workers, *allowed);
  } else if (own_workers > STARPU_MAXCPUS) {
    problem =
        fmt::format("schedule.workers: rank {} would carry {} workers, StarPU was built for {} a process",
                    mpi.rank(), own_workers, STARPU_MAXCPUS);
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) throw InputError(problem);
  std::string advice;
  if (!config.emulate) {  // emulated workers sleep
    advice = core_advice({.host = Topology::host(),
                          .share = share,
                          .machine = hardware.machine,
                          .launched = hardware.binding,
                          .rank = mpi.rank(),
                          .ranks = mpi.ranks(),
                          .computing = computing});
  }
  advice = mpi.first_problem(advice);
  if (mpi.rank() == 0 && !advice.empty()) print_message(fmt::format("starpipe: {}\n", advice));
  return share;
}

}  // namespace starpipe::runtime
