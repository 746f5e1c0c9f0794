// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/core_share.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <starpu.h>

#include "starpipe/base/environment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

bool user_binds_workers() {
  return std::ranges::any_of(
      std::array{"STARPU_WORKERS_NOBIND", "STARPU_WORKERS_CPUID", "STARPU_WORKERS_COREID"},
      [](const char* name) { return !environment(name).value_or("").empty(); });
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
  const std::string allowed = environment("STARPU_NCPU").value_or("");
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

}  // namespace starpipe::runtime
