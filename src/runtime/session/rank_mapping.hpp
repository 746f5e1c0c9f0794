// SPDX-License-Identifier: Apache-2.0
// `runtime.mapping: auto` on the ranks of a run.
#pragma once

#include <span>
#include <vector>

#include "runtime/hardware/link.hpp"
#include "runtime/hardware/topology.hpp"
#include "runtime/session/gpu_share.hpp"
#include "runtime/session/mpi.hpp"
#include "runtime/session/worker_map.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// Collective, before StarPU starts. This rank's part of its host's GPUs, as `share_gpus` of mapping.hpp
/// divides those that CUDA lets the ranks see among the workers that `runtime.device` puts on GPUs. Throws
/// InputError on every rank when a rank's GPUs do not carry equally many of these.
GpuShare share_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config);

/// By place: its GPU, or its core on that machine.
std::vector<Device> devices_of(const Topology& topology, const CoreShare& cores,
                               std::span<const std::optional<Device>> gpus, int places);

/// Collective. The workers on the places of the ranks, near to those that they exchange much with. `devices`:
/// of this rank's places (their host and rank are set here).
WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Traffic> traffic);

}  // namespace starpipe::runtime
