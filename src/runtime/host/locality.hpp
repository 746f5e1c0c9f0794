// SPDX-License-Identifier: Apache-2.0
// The places of a host's cores and GPUs, by hwloc, and which cores are near which GPUs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/host/hardware.hpp"
#include "runtime/host/topology.hpp"

namespace starpipe::runtime {

/// Returns the device of each slot of a rank: the core that `share` gives the slot, or a device that stands
/// for all of the share's cores.
std::vector<Device> core_devices(const Topology& topology, const CoreShare& share, int slots);

/// Returns the GPUs of the topology, by PCI address: NVIDIA's, and any other that has a CUDA device. Their
/// host is left empty. None where the topology has no PCI devices.
std::vector<Device> find_gpus(const Topology& topology);

/// Returns the device of each slot of a rank: its GPU if `gpus[slot]` is set, else its core. `gpus` is empty
/// in a run without GPUs.
std::vector<Device> slot_devices(const Topology& topology, const CoreShare& cores,
                                 std::span<const std::optional<Device>> gpus, int slots);

/// Returns, for each GPU, a core of `pus` of its own for the thread that drives it: near the root of the
/// GPU's PCI hierarchy if one is free, else on the GPU's NUMA nodes, else anywhere. Each core is hwloc's
/// logical number of a PU. Empty when there are fewer cores than GPUs.
std::vector<unsigned> near_cores(const Topology& topology, const std::string& pus,
                                 std::span<const Device> gpus);

/// Returns the share with its cores given to workers by nearness: the thread of a GPU is near its GPU, a
/// worker on a core is near the GPU of the nearest slot. `gpus`: by slot, nullopt if the worker is a core.
/// Does not change a share without GPUs, or without cores of their own for workers.
CoreShare near_gpus(const Topology& topology, CoreShare share, std::span<const std::optional<Device>> gpus);

}  // namespace starpipe::runtime
