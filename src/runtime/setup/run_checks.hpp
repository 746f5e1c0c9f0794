// SPDX-License-Identifier: Apache-2.0
// Refuses `runtime.device: cuda` before anything runs where it cannot work.
#pragma once

#include <string>

#include "runtime/host/topology.hpp"
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

/// Throws InputError, which names variable and value, when a variable of the environment that StarPU reads
/// has a value that it cannot read: StarPU would abort or crash. Refuses numbers of cores that `host` does
/// not have, and a variable for cores (..._COREID) beside the one for their hardware threads (..._CPUID).
/// Refuses STARPU_NTHREADS_PER_CORE values other than 1 as well, since starpipe chooses the cores of its
/// workers. Values that it reads and then ignores, and variables that this version of StarPU does not read,
/// pass. Not to be called while another thread changes the environment.
void check_starpu_variables(const Topology& host = Topology::host());

}  // namespace starpipe::runtime
