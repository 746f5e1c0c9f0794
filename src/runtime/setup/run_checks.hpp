// SPDX-License-Identifier: Apache-2.0
// Refuses `runtime.device: cuda` before anything runs where it cannot work.
#pragma once

#include <string>

#include "starpipe/model/network.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Throws InputError naming the key when this program or machine has no GPU for `runtime.device: cuda`.
void check_device(const Config& config);

/// Like check_device(), for one rank. A rank without a GPU is accepted in a run that mixes cores and GPUs;
/// share_gpus refuses it later if it carries a GPU's worker. Where there is a GPU, StarPU's build and
/// settings must suit it.
void check_rank_device(const Config& config);

/// Why StarPU, as it was built and as the environment sets it, cannot run a rank's GPU workers; empty when it
/// can.
std::string starpu_problem();

/// Throws InputError when a layer of the network has no kernels for the configured device.
void check_kernels(const Config& config, const model::Network& network);

}  // namespace starpipe::runtime
