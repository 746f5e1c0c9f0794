// SPDX-License-Identifier: Apache-2.0
// `runtime.device: cuda`: which GPUs carry a rank's logical workers, and what StarPU needs on them.
#pragma once

#include <string>
#include <vector>

#include "session.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/runtime/config.hpp"

namespace starpipe::runtime {

/// Throws InputError naming the key when this program or machine has no GPU for `runtime.device: cuda`, or
/// the configuration asks for what GPUs do not do.
void check_device(const Config& config);

/// Throws InputError when a layer of the network has no kernels for the configured device.
void check_kernels(const Config& config, const model::Network& network);

/// The share of `gpus` GPUs that one of `ranks` ranks gets that see the same ones: a block of neighbours, or,
/// when there are more ranks than GPUs, one that it shares with neighbouring ranks. For `workers` logical
/// workers; no more GPUs than these.
std::vector<int> gpus_of_rank(int gpus, int ranks, int rank, int workers);

/// Collective, before StarPU starts. Nothing unless `runtime.device` is cuda. Ranks of a host that see
/// different GPUs (CUDA_VISIBLE_DEVICES, Slurm) keep their own; those that see the same ones divide them.
/// Throws InputError on every rank when a rank's GPUs do not divide its workers.
GpuShare share_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config);

}  // namespace starpipe::runtime
