// SPDX-License-Identifier: Apache-2.0
// Refuses, before anything runs, devices that do not work here and variables that StarPU cannot use.
#pragma once

#include <string>

#include "runtime/host/topology.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Throws InputError naming the key when this program or machine has no GPU for `runtime.device: cuda`.
void check_device(const Config& config);

/// Does the same as check_device() for one rank. A rank without a GPU is accepted in a run that mixes cores
/// and GPUs; share_gpus refuses it later if it carries a GPU's worker. Where there is a GPU, StarPU's build
/// and settings must suit it.
void check_rank_device(const Config& config);

/// Returns why StarPU, as it was built and as the environment sets it, cannot run a rank's GPU workers; an
/// empty string if it can.
std::string starpu_problem();

/// Throws InputError when a layer of the network has no kernels for the configured device.
void check_kernels(const Config& config, const model::Network& network);

/// Throws InputError, which names variable and value, if a variable of the environment that starpipe relies
/// on has a value that StarPU cannot read (StarPU would abort or crash) or that starpipe cannot work with.
/// Refuses numbers of cores that `host` does not have, and a variable for cores (..._COREID) next to the one
/// for their hardware threads (..._CPUID). All other variables of StarPU pass. Not to be called while another
/// thread changes the environment.
void check_starpu_variables(const Topology& host = Topology::host());

}  // namespace starpipe::runtime
