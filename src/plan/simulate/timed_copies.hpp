// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A stash that is copied to its home and back, with times of the run without copies.
struct TimedCopy {
  int stage = 0;
  int microbatch = 0;
  double made = 0;    ///< F has ended
  double needed = 0;  ///< B starts
  double copy = 0;    ///< how long a copy takes
  double out = 0;     ///< O ends
  double back = 0;    ///< L starts
};

/// Sets the times of the copies of one worker: each O as early as its channel allows, each L as late. Drops
/// the stashes that would come back before they are gone, those that fit worst first.
void place_copies(std::vector<TimedCopy>& copies);

/// Returns the schedule with these stashes at `home(stage, microbatch)`, by all workers. n follows from the
/// times: O, and a pass that frees memory, come where they end; L, F and R where they start. In this order
/// nobody waits for memory that would not be free without copies. Workers keep their orders. `timeline`: of
/// `ordered`.
Schedule with_timed_copies(const Schedule& ordered, const Timeline& timeline,
                           const std::vector<TimedCopy>& copies,
                           const std::function<Home(int stage, int microbatch)>& home);

}  // namespace starpipe::plan
