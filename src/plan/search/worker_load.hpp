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
  double limit = 0;          ///< `K`; a multiple of the stash where all stashes are equal
};

Load load_of(const Instance& instance, const Chain& chain, int worker);

}  // namespace starpipe::plan
