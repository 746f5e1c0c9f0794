// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe {

/// Whether this code runs on StarPU's build for SimGrid: on simulated GPUs and links, in simulated time
/// (docs/simulated-clusters.md). All threads of StarPU are then coroutines of one thread. They switch only
/// where StarPU, MPI or SimGrid wait. So nothing may block by other means, and no thread of ours may run.
#ifdef STARPIPE_ON_SIMGRID
inline constexpr bool on_simgrid = true;
#else
inline constexpr bool on_simgrid = false;
#endif

}  // namespace starpipe
