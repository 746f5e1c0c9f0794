// SPDX-License-Identifier: Apache-2.0
// `runtime.device: cuda`: what is refused before anything runs.
#pragma once

#include <string>

#include "starpipe/model/network.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// Throws InputError naming the key when this program or machine has no GPU for `runtime.device: cuda`, or
/// the configuration asks for what GPUs do not do.
void check_device(const Config& config);

/// The same for a rank of a run: one of cores and GPUs may have cores only (`share_gpus` refuses those that
/// carry a GPU's worker). Where there is a GPU, StarPU's build and settings must fit it.
void check_rank_device(const Config& config);

/// Why StarPU, as it was built and is set by the environment, would not run a rank's GPU workers; empty when
/// it would.
std::string starpu_problem();

/// Throws InputError when a layer of the network has no kernels for the configured device.
void check_kernels(const Config& config, const model::Network& network);

}  // namespace starpipe::runtime
