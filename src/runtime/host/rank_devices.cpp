// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/rank_devices.hpp"

#include "runtime/host/hardware.hpp"
#include "runtime/host/gather.hpp"

namespace starpipe::runtime {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Device, kind, host, rank, name, number, numa, cache, pci, bridges, nvlink)

std::vector<std::vector<Device>> gather_devices(const Mpi& mpi, std::vector<Device> devices) {
  const std::string host = find_hardware().host;
  for (Device& device : devices) {
    device.host = host;
    device.rank = mpi.rank();
  }
  return gather_all(mpi, devices);
}

}  // namespace starpipe::runtime
