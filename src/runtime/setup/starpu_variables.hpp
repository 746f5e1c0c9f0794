// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::runtime {

/// Throws InputError, which names variable and value, when a variable of the environment that StarPU reads
/// has a value that it cannot read: StarPU would abort or crash. Refuses STARPU_NTHREADS_PER_CORE values
/// other than 1 as well, since starpipe chooses the cores of its workers. Values that it reads and then
/// ignores, and variables that this version of StarPU does not read, pass. Not to be called while another
/// thread changes the environment.
void check_starpu_variables();

}  // namespace starpipe::runtime
