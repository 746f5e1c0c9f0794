// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// A stash whose passes all run on one worker. Places count in the order of this worker's jobs.
struct StashWait {
  std::size_t forward = 0;   ///< place of F
  std::size_t backward = 0;  ///< place of B; R, if there is one, comes directly before
  std::size_t last = 0;      ///< place of the last job that reads the stash
  double size = 1;           ///< in the unit of the limit
};

/// Returns the stashes that get no home (true), so that all stashes of the worker together never take more
/// than `limit`. Returns nullopt if even the stashes that jobs are using take more. Where memory is short,
/// the stash that is needed last is dropped (L. A. Belady, A study of replacement algorithms for a
/// virtual-storage computer, 1966). Of stashes of one size no other choice drops fewer. O(n log n).
std::optional<std::vector<bool>> dropped_to_fit(std::span<const StashWait> stashes, double limit);

/// Returns an ordered schedule with homes such that each worker's peak of stashes is within its limit, and as
/// few stashes as possible are made again. Jobs keep their order, and each R runs directly before its B.
/// A stash that has no home in `schedule` gets none. `limits`: in stashes, one for each worker. Throws
/// InputError if R does not help: a worker uses more stashes at once than its limit, or the passes of a stash
/// are on several workers.
Schedule with_homes_to_fit(const Schedule& schedule, std::span<const int> limits);

}  // namespace starpipe::plan
