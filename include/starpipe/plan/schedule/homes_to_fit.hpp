// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
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

/// The way of a stash from F to B: it stays in the worker's memory, R makes it again, or it is copied to its
/// home and back.
struct StashFate {
  enum class Kind : std::uint8_t { kept, remade, copied };
  Kind kind = Kind::kept;
  // If it is copied:
  std::size_t out_before = 0;  ///< O has ended before the job at this place begins
  std::size_t back_from = 0;   ///< L may begin with the job at this place
};

/// Chooses the stashes of one worker that get no home. At every moment the others take at most `limit`
/// together.
/// Returns true for those without a home, by index in `stashes`; nullopt if no choice fits. Where memory is
/// short, it drops the stash that is needed last (L. A. Belady, A study of replacement algorithms for a
/// virtual-storage computer, 1966). Of stashes of one size no other choice drops fewer. O(n log n).
std::optional<std::vector<bool>> dropped_to_fit(std::span<const StashWait> stashes, double limit);

/// The same where some of the dropped stashes are copied to a home. `remade`: the share of them that R makes
/// again, in [0, 1], spread evenly. A copied stash needs memory while F runs, so another one is dropped at
/// its F. `spare`: where stashes must go, memory for so many of the largest ones is left for copies under
/// way. O may then end later, and L begin earlier. L keep the order of their B. O(n log n + n places).
std::optional<std::vector<StashFate>> fates_to_fit(std::span<const StashWait> stashes, double limit,
                                                   double remade, int spare = 0);

/// How `with_homes_to_fit` saves memory.
struct FitWays {
  Home copies = Home::host;  ///< home of the stashes that are copied
  double remade = 1;         ///< share of the dropped stashes that R makes again; the others are copied
  int spare = 0;             ///< see `fates_to_fit`
  /// Of a stash, by stage, or one for all; in the unit of the limits.
  std::vector<double> sizes = {1};
};

/// Returns an ordered schedule with homes such that each worker's peak of stashes is within its limit, and as
/// few stashes as possible leave their worker. Jobs keep their order, and each R runs directly before its B.
/// The stashes that have no home in `schedule` still have none. `limits`: one for each worker. Throws
/// InputError if no choice of homes is enough: a worker uses more stashes at once than its limit, or the
/// passes of a stash are on several workers. Throws it also for a schedule that copies stashes.
Schedule with_homes_to_fit(const Schedule& schedule, std::span<const double> limits,
                           const FitWays& ways = {});
/// The same with limits in stashes.
Schedule with_homes_to_fit(const Schedule& schedule, std::span<const int> limits, const FitWays& ways = {});

}  // namespace starpipe::plan
