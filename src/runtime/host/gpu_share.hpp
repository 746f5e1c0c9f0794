// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/host/hardware.hpp"
#include "runtime/host/mpi.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The GPUs that carry logical workers of a rank; none: all its workers are CPU cores.
struct GpuShare {
  std::vector<int> gpus;  ///< CUDA's numbers in this process, ascending
  int workers_each = 1;   ///< logical workers of each: streams of one GPU
  /// By slot of the rank; nullopt if the worker is a core. Empty without GPUs.
  std::vector<std::optional<Device>> devices;

  [[nodiscard]] bool has(int slot) const { return !devices.empty() && devices[index(slot)].has_value(); }
};

/// Collective, before StarPU starts. Returns this rank's part of its host's GPUs: `divide_gpus` divides the
/// GPUs that CUDA lets the ranks see among the workers that `runtime.device` puts on GPUs. Throws InputError
/// on every rank when a rank's GPUs do not carry equally many of these.
GpuShare share_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config);

/// Orders `pus` ([slot]) as StarPU hands cores to its threads: first the core of each GPU's thread, then the
/// cores of CPU workers. One thread drives all streams of a GPU.
std::vector<unsigned> cores_in_order(std::span<const unsigned> pus, const GpuShare& gpus);

/// Collective. Returns the devices of all ranks, [rank]. Sets host and rank of this rank's `devices`.
std::vector<std::vector<Device>> gather_devices(const Mpi& mpi, std::vector<Device> devices);

/// A rank of a host that has GPUs.
struct RankWithGpus {
  std::vector<Device> visible;  ///< GPUs that the launcher lets it see
  int workers = 1;              ///< logical workers that are to have a GPU
};

/// Divides a host's GPUs among its ranks. Returns the GPUs of each rank's workers, ascending. Ranks that see
/// the same GPUs divide them into groups of near GPUs, in proportion to their workers. Where workers are more
/// than GPUs, several share a GPU; where they are fewer, the GPUs nearest to each other are taken.
std::vector<std::vector<Device>> divide_gpus(std::span<const RankWithGpus> ranks);

}  // namespace starpipe::runtime
