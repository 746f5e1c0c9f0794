// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <vector>

#include "base/numbers.hpp"
#include "plan/search/instance.hpp"

// docs/search.md, "The lower bound", defines the names in `backquotes`.
namespace starpipe::plan {

/// Times of one micro-batch that runs alone, by stage.
struct Chain {
  std::vector<double> forward_start;   ///< `f(s)`, earliest start of F
  std::vector<double> backward_start;  ///< `b(s)`, earliest start of B
  std::vector<double> after_backward;  ///< `t(s)`, shortest time from the end of B to the end of the schedule
  std::vector<double> from_forward;  ///< `r(s)`, shortest time from the start of F to the end of the schedule
};

Chain chain_of(const Instance& instance);

/// Sums, smallest and largest values over the stages of one worker.
struct Load {
  double head = infinity;                         ///< `h`, smallest f(s)
  double first_backward = infinity;               ///< smallest b(s)
  double from_forward = infinity;                 ///< smallest r(s)
  double after_backward = infinity;               ///< smallest t(s)
  double forward = 0, backward = 0, weights = 0;  ///< times of all F, B and W of one micro-batch
  double min_forward = infinity, min_backward = infinity, min_weights = infinity;
  double max_forward = 0;
  double stash = 0;          ///< memory of all stashes of one micro-batch
  double max_stash = 0;      ///< memory of the largest stash
  double forward_rate = 0;   ///< largest time of F per memory of its stash
  double backward_rate = 0;  ///< largest time of B and W per memory of their stash
  double weights_rate = 0;   ///< largest time of W per memory of its stash
  double limit = 0;          ///< `K`; a multiple of the stash where all stashes are equal
};

Load load_of(const Instance& instance, const Chain& chain, int worker);

/// Returns the time of passes whose stashes fill `memory`, at `rate` of time per memory. Infinite without a
/// memory limit, whatever the rate.
inline double time_for(double memory, double rate) { return memory < infinity ? memory * rate : infinity; }

/// Bound 2: how long the worker must idle after its last B, because so few W can be left.
double idle_after_backward(const Load& load, double microbatches);

/// Memory fills by sequential F, and empties by sequential B. Meanwhile some of it is not in use.
struct Ramps {
  double up = 0, down = 0;  ///< how long it fills and empties
  bool disjoint = false;    ///< memory has filled before it empties
  double unused = 0;        ///< memory times time
};

/// `limit`: the most memory that is ever live. `known`: a makespan that no schedule can beat.
Ramps ramps_of(const Load& load, double limit, double known);

}  // namespace starpipe::plan
