// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "plan/search/instance.hpp"
#include "plan/search/worker_load.hpp"

namespace starpipe::plan {

/// How fast copies take stashes from a worker's memory and back. It limits what bounds 3 to 5 may count on.
struct CopyRate {
  double memory = 0;               ///< memory of stashes per time; infinite if a copy takes no time
  double first_copy = infinity;    ///< smallest end of F: no copy begins before
  double after_copies = infinity;  ///< shortest time from the end of the last copy to the end of the schedule

  /// Returns the memory of the stashes that one direction can copy in `time`.
  [[nodiscard]] double memory_in(double time) const;
};

/// Returns the rate of a worker; 0 where stashes are not copied.
CopyRate copy_rate_of(const Instance& instance, const Chain& chain, int worker);

/// Bound 8, for a worker whose stashes may have no home. The more F it computes again, the longer its work
/// takes, and the less area its stashes need. Returns the smallest larger one of the two, over all shares of
/// recomputed F. `known`: a makespan that no schedule can beat.
double recomputation_bound(const Instance& instance, const Chain& chain, const Load& load, int worker,
                           double known);

/// The bound of a worker's work, fill and last B where stashes may leave it (bounds 8 and 9). `rate`: of
/// copies. `remaking`: how long R takes, in F's time; nullopt where no F is computed again.
double ends_bound(const Load& load, double microbatches, const CopyRate& rate,
                  std::optional<double> remaking);

/// Bound 9, where stashes may be copied, and made again if `may_recompute`. `loads`: by worker. `known`: the
/// bound without a memory limit. Returns `known` where copies are fast enough.
double copies_bound(const Instance& instance, const Chain& chain, const std::vector<Load>& loads,
                    bool may_recompute, double known);

}  // namespace starpipe::plan
