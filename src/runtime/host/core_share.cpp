// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/core_share.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <starpu.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/numbers.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/product_library.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// The ranks of this host.
struct HostRanks {
  std::vector<RankOnHost> ranks;
  std::vector<int> numbers;         // [index into ranks]
  std::vector<std::string> groups;  // [index into ranks] of their CPU quotas
  std::size_t self = 0;             // this rank, as an index into `ranks`

  // Returns the indices into `ranks`: the ranks that share the CPU quota of this one.
  [[nodiscard]] std::vector<std::size_t> in_group_of_self() const {
    std::vector<std::size_t> found;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (groups[rank] == groups[self]) found.push_back(rank);
    }
    return found;
  }
};

HostRanks ranks_of_host(const Mpi& mpi, const WorkerMap& map, const Hardware& hardware) {
  // Not MPI_COMM_TYPE_SHARED: that follows the launcher, which may see several nodes on one host.
  const auto all = gather_all(mpi, std::tuple(hardware.host, hardware.binding, hardware.quota.group));
  HostRanks here;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    const auto& [host, binding, group] = all[index(rank)];
    if (host != hardware.host) continue;
    if (rank == mpi.rank()) here.self = here.ranks.size();
    here.ranks.push_back({binding, map.count(rank)});
    here.numbers.push_back(rank);
    here.groups.push_back(group);
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

int workers_on_cores(const WorkerMap& map, const RuntimeConfig& config, int rank) {
  return static_cast<int>(
      std::ranges::count_if(map.workers_of(rank), [&](int worker) { return !config.on_gpu(worker); }));
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
  const auto workers_of = [&](const std::vector<std::size_t>& ranks) {
    int workers = 0;
    for (const std::size_t rank : ranks) workers += workers_on_cores(map, config, here.numbers[rank]);
    return config.emulate ? 0 : workers;
  };
  const int computing = workers_of(neighbours(here.ranks, here.self));
  const int sharing_quota = workers_of(here.in_group_of_self());
  const double room_of_quota = std::max(1.0, hardware.quota.cores) * config.workers_per_core;
  if (sharing_quota > room_of_quota) {
    problem = fmt::format(
        "schedule.workers: {} workers put {} on a CPU quota of {} on {}, with room for {} "
        "(runtime.workers_per_core: {})",
        map.workers(), sharing_quota, hardware.quota.text(), hardware.machine,
        static_cast<int>(room_of_quota), config.workers_per_core);
  } else if (computing > share.cores * config.workers_per_core) {
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
                          .computing = computing,
                          .quota = hardware.quota,
                          .sharing_quota = sharing_quota});
  }
  for (const std::string& line :
       {advice, own_workers > 0 && !config.emulate ? product_advice() : std::string()}) {
    const std::string first = mpi.first_problem(line);
    if (!first.empty()) mpi.say(first);
  }
  // Threads that poll for messages would take the quota's time from the workers.
  share.cores = static_cast<int>(std::clamp(hardware.quota.cores, 1.0, static_cast<double>(share.cores)));
  return share;
}

namespace {

// True if the user's variable binds MPI's thread to a core that has a worker of this rank. The variable
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
  if (use.sharing_quota > use.quota.cores) {
    return fmt::format(
        "a CPU quota of {} on {} (of the container or the batch system) slows its {}: raise the quota, or "
        "take fewer workers (runtime.workers_per_core: 1 refuses such a run)",
        use.quota.text(), use.machine, counted_text(use.sharing_quota, "worker"));
  }
  if (user_binds_workers()) return {};
  const int on_host = use.host.cores(use.host.allowed());
  if (use.computing > use.share.cores) {
    const std::string workers = counted_text(use.computing, "worker");
    if (use.share.cores < on_host && use.launched != use.host.allowed()) {
      return fmt::format(
          "{} run on {} of the {} cores of {}, to which the launcher bound rank {}: give each rank more "
          "cores (srun --cpus-per-task), or let starpipe divide them (srun --cpu-bind=none, mpiexec -bind-to "
          "none)",
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

CoreClaims::~CoreClaims() { release(); }

bool CoreClaims::claim(unsigned pu) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An abstract name begins with a zero byte.
  const std::string name = fmt::format("starpipe.core.{}", pu);
  std::ranges::copy(name, std::begin(address.sun_path) + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0)
    throw std::system_error(errno, std::generic_category(), "cannot make a socket to claim a core");
  sockets_.push_back(socket);
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): the system's interface
  if (bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0) return true;
  if (errno == EADDRINUSE) return false;
  throw std::system_error(errno, std::generic_category(), "cannot claim a core");
}

void CoreClaims::release() {
  for (const int socket : sockets_) close(socket);
  sockets_.clear();
}

CoreClaims claim_cores(const Mpi& mpi, CoreShare& share) {
  CoreClaims claims;
  std::string line;
  for (const unsigned number : share.worker_pus) {
    const unsigned pu = Topology::host().system_number(number);
    if (claims.claim(pu)) continue;
    line = fmt::format(
        "another run of starpipe has bound a worker to PU {} of {}; the workers of rank {} have no "
        "cores of their own, and both runs may be slower",
        pu, find_hardware().machine, mpi.rank());
    claims.release();
    share.worker_pus.clear();
    break;
  }
  line = mpi.first_problem(line);
  if (!line.empty()) mpi.say(line);
  return claims;
}

}  // namespace starpipe::runtime
