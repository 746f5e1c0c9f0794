// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/hardware/device.hpp"
#include "runtime/ranks/mpi.hpp"

namespace starpipe::runtime {

/// Collective. The devices of all ranks, by rank. The host and rank of `devices`, this rank's, are set here.
std::vector<std::vector<Device>> gather_devices(const Mpi& mpi, std::vector<Device> devices);

}  // namespace starpipe::runtime
