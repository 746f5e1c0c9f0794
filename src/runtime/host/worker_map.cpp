// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/worker_map.hpp"

#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/hardware.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

WorkerMap::WorkerMap(int workers, int ranks) : ranks_(ranks), slots_(index(workers)) {
  if (ranks > workers) {
    throw InputError(
        fmt::format("schedule.workers: {} ranks for {} workers, some ranks would have none", ranks, workers));
  }
  std::iota(slots_.begin(), slots_.end(), 0);
  workers_ = slots_;
}

WorkerMap::WorkerMap(int ranks, std::vector<int> slots)
    : ranks_(ranks), slots_(std::move(slots)), workers_(slots_.size(), -1) {
  for (int worker = 0; worker < workers(); ++worker) {
    const int at = slot(worker);
    if (at < 0 || at >= workers() || workers_[index(at)] >= 0)
      throw std::logic_error("two workers in one slot");
    workers_[index(at)] = worker;
  }
}

std::vector<int> WorkerMap::workers_of(int rank) const {
  const auto begin = workers_.begin() + first(rank);
  return {begin, begin + count(rank)};
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankLocation, machine, binding, bound_by, cores, workers, bound,
                                   mpi_thread, logical_workers, devices)

namespace {

std::string mpi_thread_place(const Topology& host, const CoreShare& share, int ranks) {
  if (ranks == 1) return "sends nothing";
  if (const auto variable = user_binds_mpi_thread()) return fmt::format("as {} says", *variable);
  if (const std::string pus = host.free_pus(share); !pus.empty()) return "on PUs " + pus;
  return share.worker_pus.empty() ? "not bound" : "where a worker waits";
}

std::string bound_by(const Topology& host, const std::string& binding, const CoreShare& share) {
  if (share.binding != binding) return "starpipe";
  return binding == host.allowed() ? "" : "launcher";
}

}  // namespace

RankLocation location_of(const std::string& machine, const Topology& host, const std::string& binding,
                         const CoreShare& share, int workers, int ranks, std::span<const Device> devices) {
  RankLocation location{.machine = machine,
                        .binding = share.binding,
                        .bound_by = bound_by(host, binding, share),
                        .cores = host.cores(share.binding),
                        .workers = workers,
                        .bound = !share.worker_pus.empty(),
                        .mpi_thread = mpi_thread_place(host, share, ranks),
                        .logical_workers = {},
                        .devices = {}};
  for (const Device& device : devices) location.devices.push_back(device.name);
  return location;
}

std::vector<RankLocation> gather_locations(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                                           std::span<const Device> devices) {
  const Hardware hardware = find_hardware();
  RankLocation mine = location_of(hardware.machine, Topology::host(), hardware.binding, share,
                                  map.count(mpi.rank()), mpi.ranks(), devices);
  mine.logical_workers = map.workers_of(mpi.rank());
  return gather_all(mpi, mine);
}

}  // namespace starpipe::runtime
