// SPDX-License-Identifier: Apache-2.0
#include "runtime/mapping/rank_location.hpp"

#include "runtime/hardware/hardware.hpp"
#include "runtime/ranks/gather.hpp"

namespace starpipe::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankLocation, machine, binding, bound_by, cores, workers, bound, free_pus,
                                   logical_workers, devices)

std::string bound_by(const Topology& host, const std::string& binding, const CoreShare& share) {
  if (share.binding != binding) return "starpipe";
  return binding == host.allowed() ? "" : "launcher";
}

std::vector<RankLocation> gather_locations(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                                           std::span<const Device> devices) {
  const Hardware hardware = find_hardware();
  RankLocation mine{.machine = hardware.machine,
                    .binding = share.binding,
                    .bound_by = runtime::bound_by(Topology::host(), hardware.binding, share),
                    .cores = Topology::host().cores(share.binding),
                    .workers = map.count(mpi.rank()),
                    .bound = !share.worker_pus.empty(),
                    .free_pus = Topology::host().free_pus(share),
                    .logical_workers = map.workers_of(mpi.rank()),
                    .devices = {}};
  for (const Device& device : devices) mine.devices.push_back(device.name);
  return gather_all(mpi, mine);
}

}  // namespace starpipe::runtime
