// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/host/topology.hpp"

namespace starpipe::runtime {

/// Throws InputError, which names variable and value, when a variable of the environment that StarPU reads
/// has a value that it cannot read: StarPU would abort or crash. Refuses numbers of cores that `host` does
/// not have, and a variable for cores (..._COREID) beside the one for their hardware threads (..._CPUID).
/// Refuses STARPU_NTHREADS_PER_CORE values other than 1 as well, since starpipe chooses the cores of its
/// workers. Values that it reads and then ignores, and variables that this version of StarPU does not read,
/// pass. Not to be called while another thread changes the environment.
void check_starpu_variables(const Topology& host = Topology::host());

}  // namespace starpipe::runtime
