// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace starpipe::runtime {

/// The rank that the launcher (hydra, Slurm) gave this process, known before MPI starts. Nothing when there
/// is no launcher.
std::optional<int> launcher_rank();

/// Splits the process in two: a child that works, and a parent that only waits for it. When a rank dies, MPI
/// launchers kill the other ranks at once, and none of them can say what happened. The parent of the lost
/// rank can: it prints one line on standard error, and asks a launcher that would wait for the others (srun)
/// to end the job.
///
/// Returns nothing in the child. In the parent, returns when the child has ended: its exit status, or 1
/// after naming the rank when a signal ended it. The child does not outlive its parent. Call it before MPI,
/// StarPU or any thread is started. Throws std::system_error when no process can be made.
std::optional<int> watch_over_rank();

}  // namespace starpipe::runtime
