// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/rank_mapping.hpp"

#include "runtime/host/assignment.hpp"
#include "runtime/host/rank_devices.hpp"
#include "runtime/host/gather.hpp"

namespace starpipe::runtime {

WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Traffic> traffic) {
  std::vector<Device> all;
  for (const std::vector<Device>& of_rank : gather_devices(mpi, std::move(devices)))
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  // Rank 0 decides for all: hosts of different kinds may round differently.
  std::vector<int> slots;
  if (mpi.rank() == 0) slots = map_workers(all, traffic);
  return {mpi.ranks(), gather_all(mpi, slots).front()};
}

}  // namespace starpipe::runtime
