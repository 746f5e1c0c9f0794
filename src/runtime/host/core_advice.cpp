// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/core_advice.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/host/core_share.hpp"
#include "base/environment.hpp"
#include "base/numbers.hpp"

namespace starpipe::runtime {
namespace {

// Whether the user's variable binds MPI's thread to a core that has a worker of this rank. The variable
// numbers PUs or cores as hwloc does, in logical order. StarPU takes the first PU of a core.
bool binds_to_worker(std::string_view variable, const CoreUse& use) {
  const std::optional<int> value = environment_number(std::string(variable).c_str());
  if (!value) return false;
  const bool by_core = variable.ends_with("COREID");
  const int pus_of_core = use.host.pus() / std::max(1, use.host.cores(use.host.allowed()));
  std::vector<unsigned> pus;
  for (const unsigned pu : use.share.worker_pus) pus.push_back(use.host.system_number(pu));
  const int worker_cores = use.host.cores(fmt::format("{}", fmt::join(pus, ",")));
  pus.push_back(use.host.system_number(static_cast<unsigned>(by_core ? *value * pus_of_core : *value)));
  return use.host.cores(fmt::format("{}", fmt::join(pus, ","))) == worker_cores;
}

}  // namespace

std::string core_advice(const CoreUse& use) {
  if (user_binds_workers()) return {};
  const int on_host = use.host.cores(use.host.allowed());
  if (use.computing > use.share.cores) {
    const std::string workers = counted_text(use.computing, "worker");
    if (use.share.cores < on_host && use.launched != use.host.allowed()) {
      return fmt::format(
          "{} run on {} of the {} cores of {}, to which the launcher bound rank {}: give each rank more "
          "cores "
          "(srun --cpus-per-task), or let starpipe divide them (srun --cpu-bind=none, mpiexec -bind-to none)",
          workers, use.share.cores, on_host, use.machine, use.rank);
    }
    return fmt::format(
        "{} run on {} of {} and slow each other: take more cores or hosts, or fewer workers "
        "(runtime.workers_per_core: 1 refuses such a run)",
        workers, counted_text(use.share.cores, "core"), use.machine);
  }
  if (use.ranks == 1 || use.share.worker_pus.empty()) return {};
  if (const auto variable = user_binds_mpi_thread()) {
    if (!binds_to_worker(*variable, use)) return {};
    return fmt::format(
        "{} binds MPI's thread of rank {} to the core of a worker, which it slows: name a core without a "
        "worker, or unset it",
        *variable, use.rank);
  }
  if (!use.host.free_pus(use.share).empty()) return {};
  return fmt::format(
      "rank {} has a worker on each of its cores, so MPI's thread takes a few per cent of their time: give "
      "each rank one core more than it has workers",
      use.rank);
}

}  // namespace starpipe::runtime
