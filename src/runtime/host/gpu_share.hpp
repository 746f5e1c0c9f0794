// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "runtime/host/device.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/host/mpi.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The GPUs that carry logical workers of a rank; none: all its workers are CPU cores.
struct GpuShare {
  std::vector<int> gpus;  ///< CUDA's numbers in this process, ascending
  int workers_each = 1;   ///< logical workers of each: streams of one GPU
  /// By slot of the rank, nothing where the worker is a core; empty without GPUs.
  std::vector<std::optional<Device>> devices;

  [[nodiscard]] bool has(int slot) const { return !devices.empty() && devices[index(slot)].has_value(); }
};

/// Collective, before StarPU starts. This rank's part of its host's GPUs: `divide_gpus` divides the GPUs that
/// CUDA lets the ranks see among the workers that `runtime.device` puts on GPUs. Throws InputError on every
/// rank when a rank's GPUs do not carry equally many of these.
GpuShare share_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config);

/// Orders `pus` ([slot]) as StarPU hands cores to its threads: first the core of each GPU's thread, then the
/// cores of CPU workers. One thread drives all streams of a GPU.
std::vector<unsigned> cores_in_order(std::span<const unsigned> pus, const GpuShare& gpus);

}  // namespace starpipe::runtime
