// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/rank_location.hpp"

#include "runtime/hardware/hardware.hpp"
#include "runtime/ranks/gather.hpp"

namespace starpipe::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankLocation, machine, binding, cores, workers, bound, logical_workers,
                                   devices)

std::vector<RankLocation> gather_locations(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                                           std::span<const Device> devices) {
  RankLocation mine{.machine = find_hardware().machine,
                    .binding = share.binding,
                    .cores = Topology::host().cores(share.binding),
                    .workers = map.count(mpi.rank()),
                    .bound = !share.worker_pus.empty(),
                    .logical_workers = map.workers_of(mpi.rank()),
                    .devices = {}};
  for (const Device& device : devices) mine.devices.push_back(device.name);
  return gather_all(mpi, mine);
}

}  // namespace starpipe::runtime
