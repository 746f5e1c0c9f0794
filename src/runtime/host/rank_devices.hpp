// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/host/device.hpp"
#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// Collective. Returns the devices of all ranks, [rank]. Sets host and rank of this rank's `devices`.
std::vector<std::vector<Device>> gather_devices(const Mpi& mpi, std::vector<Device> devices);

}  // namespace starpipe::runtime
