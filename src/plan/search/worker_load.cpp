// SPDX-License-Identifier: Apache-2.0
#include "plan/search/worker_load.hpp"

#include <algorithm>
#include <cmath>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

Chain chain_of(const Instance& instance) {
  const auto stages = index(instance.stages);
  const auto& [F, B, W] = instance.time;
  Chain chain{std::vector<double>(stages), std::vector<double>(stages), std::vector<double>(stages),
              std::vector<double>(stages)};
  for (std::size_t s = 1; s < stages; ++s) {
    chain.forward_start[s] = chain.forward_start[s - 1] + F[s - 1] + instance.forward_lag[s - 1];
  }
  const std::size_t last = stages - 1;
  chain.backward_start[last] = chain.forward_start[last] + F[last];
  for (std::size_t s = last; s-- > 0;) {
    chain.backward_start[s] = chain.backward_start[s + 1] + B[s + 1] + instance.backward_lag[s];
  }
  chain.after_backward[0] = W[0];
  for (std::size_t s = 1; s < stages; ++s) {
    chain.after_backward[s] =
        std::max(W[s], instance.backward_lag[s - 1] + B[s - 1] + chain.after_backward[s - 1]);
  }
  chain.from_forward[last] = F[last] + B[last] + chain.after_backward[last];
  for (std::size_t s = last; s-- > 0;) {
    chain.from_forward[s] = F[s] + instance.forward_lag[s] + chain.from_forward[s + 1];
  }
  return chain;
}

Load load_of(const Instance& instance, const Chain& chain, int worker) {
  const auto& [F, B, W] = instance.time;
  Load load;
  double min_stash = infinity;
  for (const int stage : instance.stages_of[index(worker)]) {
    const std::size_t s = index(stage);
    const double size = instance.stash[s];
    load.head = std::min(load.head, chain.forward_start[s]);
    load.first_backward = std::min(load.first_backward, chain.backward_start[s]);
    load.from_forward = std::min(load.from_forward, chain.from_forward[s]);
    load.after_backward = std::min(load.after_backward, chain.after_backward[s]);
    load.forward += F[s];
    load.backward += B[s];
    load.weights += W[s];
    load.min_forward = std::min(load.min_forward, F[s]);
    load.min_backward = std::min(load.min_backward, B[s]);
    load.min_weights = std::min(load.min_weights, W[s]);
    load.max_forward = std::max(load.max_forward, F[s]);
    load.stash += size;
    load.max_stash = std::max(load.max_stash, size);
    min_stash = std::min(min_stash, size);
    if (size > 0) {
      load.forward_rate = std::max(load.forward_rate, F[s] / size);
      load.backward_rate = std::max(load.backward_rate, (B[s] + W[s]) / size);
      load.weights_rate = std::max(load.weights_rate, W[s] / size);
    } else {
      load.forward_rate = load.backward_rate = infinity;
      if (W[s] > 0) load.weights_rate = infinity;
    }
  }
  const bool whole =
      min_stash == load.max_stash && min_stash > 0 && instance.limits[index(worker)] < infinity;
  const double limit = instance.limits_with_slack[index(worker)];
  load.limit = whole ? std::floor(limit / min_stash) * min_stash : limit;
  return load;
}

double idle_after_backward(const Load& load, double microbatches) {
  const double late = std::min(microbatches * load.weights, time_for(load.limit, load.weights_rate));
  return std::max(0.0, load.after_backward - late);
}

Ramps ramps_of(const Load& load, double limit, double known) {
  double steps = 0;
  double unfilled = 0;  // the sum over these steps of the memory that is not in use
  for (double live = load.max_stash; live < limit; live += load.max_stash) {
    unfilled += limit - live;
    ++steps;
  }
  Ramps ramps{.up = steps * load.min_forward, .down = steps * load.min_backward};
  ramps.disjoint = known - (load.head + load.after_backward - load.min_weights) >= ramps.up + ramps.down;
  ramps.unused = unfilled * (ramps.disjoint ? load.min_forward + load.min_backward
                                            : std::max(load.min_forward, load.min_backward));
  return ramps;
}

}  // namespace starpipe::plan
