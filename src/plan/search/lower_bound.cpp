// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/lower_bound.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "plan/search/instance.hpp"
#include "starpipe/base/index.hpp"

// Names and proofs as in docs/search.md, "The lower bound".
namespace starpipe::plan {
namespace {

using detail::Instance;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// What a micro-batch alone needs, by stage.
struct Chain {
  std::vector<double> forward_start;   ///< earliest start of F
  std::vector<double> backward_start;  ///< earliest start of B
  std::vector<double> after_backward;  ///< from the end of B to the end of the schedule, at least
  std::vector<double> after_forward;   ///< from the start of F to the end of the schedule, at least
};

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
  chain.after_forward[last] = F[last] + B[last] + chain.after_backward[last];
  for (std::size_t s = last; s-- > 0;) {
    chain.after_forward[s] = F[s] + instance.forward_lag[s] + chain.after_forward[s + 1];
  }
  return chain;
}

/// One worker: sums and extremes over its stages.
struct Load {
  double head = infinity;  ///< earliest start of any F
  double first_backward = infinity;
  double after_forward = infinity;
  double after_backward = infinity;
  double forward = 0, backward = 0, weights = 0;  ///< of one micro-batch
  double least_forward = infinity, least_backward = infinity, least_weights = infinity;
  double most_forward = 0;
  double stash = 0;          ///< of one micro-batch
  double most_stash = 0;     ///< of one stage
  double forward_rate = 0;   ///< most time of F for a unit of memory
  double backward_rate = 0;  ///< most time of B and W for a unit of memory
  double limit = 0;          ///< that stashes can fill
};

Load load_of(const Instance& instance, const Chain& chain, int worker) {
  const auto& [F, B, W] = instance.time;
  Load load;
  double least_stash = infinity;
  for (const int stage : instance.stages_of[index(worker)]) {
    const std::size_t s = index(stage);
    const double size = instance.stash[s];
    load.head = std::min(load.head, chain.forward_start[s]);
    load.first_backward = std::min(load.first_backward, chain.backward_start[s]);
    load.after_forward = std::min(load.after_forward, chain.after_forward[s]);
    load.after_backward = std::min(load.after_backward, chain.after_backward[s]);
    load.forward += F[s];
    load.backward += B[s];
    load.weights += W[s];
    load.least_forward = std::min(load.least_forward, F[s]);
    load.least_backward = std::min(load.least_backward, B[s]);
    load.least_weights = std::min(load.least_weights, W[s]);
    load.most_forward = std::max(load.most_forward, F[s]);
    load.stash += size;
    load.most_stash = std::max(load.most_stash, size);
    least_stash = std::min(least_stash, size);
    if (size > 0) {
      load.forward_rate = std::max(load.forward_rate, F[s] / size);
      load.backward_rate = std::max(load.backward_rate, (B[s] + W[s]) / size);
    } else {
      load.forward_rate = load.backward_rate = infinity;
    }
  }
  const bool whole = least_stash == load.most_stash && least_stash > 0 && instance.limit < infinity;
  load.limit =
      whole ? std::floor(instance.limit_with_slack / least_stash) * least_stash : instance.limit_with_slack;
  return load;
}

/// Time of the passes that so much memory allows; unlimited where it is, or where stashes take none.
double time_for(double memory, double rate) { return memory < infinity ? memory * rate : infinity; }

/// Work, what no work can fill at the start, and what none can fill at the end.
double work_bound(const Load& load, double microbatches) {
  const double work = microbatches * (load.forward + load.backward + load.weights);
  const double early = std::min({load.first_backward - load.head, time_for(load.limit, load.forward_rate),
                                 microbatches * load.forward});
  const double idle_before = load.first_backward - early;
  const double late = load.most_forward + time_for(load.limit, load.backward_rate);
  const double idle_after = std::max(0.0, load.after_forward - late);
  const bool apart = microbatches * load.stash > load.limit * (1 + 1e-9);
  const double bound =
      apart ? idle_before + work + idle_after : std::max(idle_before + work, load.head + work + idle_after);
  return std::max(bound, load.head + microbatches * (load.forward + load.backward) + load.after_backward);
}

/// Memory over time that stashes of neighbouring stages of one worker need beyond their lives in the chain,
/// of a micro-batch that passes neither while memory fills nor while it empties. `upper` is the next stage of
/// the worker after `lower`, and `below` the memory of `lower` and those before it.
double excess_of(const Instance& instance, const Chain& chain, const Load& load, std::size_t lower,
                 std::size_t upper, double below) {
  const auto& [F, B, W] = instance.time;
  const auto& stash = instance.stash;
  const double forward_gap = chain.forward_start[upper] - chain.forward_start[lower] - F[lower];
  const double backward_gap = chain.backward_start[lower] - chain.backward_start[upper] - B[upper];
  const auto wait = [&](double time) { return std::max(0.0, time - backward_gap); };
  // W of the upper stage before B of the lower one, or after.
  const double before = wait(W[upper]) * below +
                        std::min({(wait(W[upper] + load.least_forward) - wait(W[upper])) * below,
                                  load.least_forward * stash[lower], (B[lower] + W[lower]) * stash[upper]});
  const double weights = std::min(W[lower], W[upper]);
  const double after =
      (backward_gap + B[lower]) * stash[upper] +
      (weights + std::min(load.least_forward, weights)) * std::min(stash[lower], stash[upper]);
  const double between_forward =
      std::min(std::max(0.0, load.least_weights - forward_gap) * below, F[lower] * stash[upper]);
  return between_forward + std::min(before, after);
}

/// The area of memory over time that the stashes need at least. `known`: a proven bound.
double memory_bound(const Instance& instance, const Chain& chain, const Load& load, int worker,
                    double known) {
  if (load.stash == 0) return 0;
  // More than all stashes are never live. So the schedule is at least as long as each of the ramps below.
  const double limit = std::min(load.limit, instance.microbatches * load.stash);
  // The first stashes start one F after the other, the last ones end one B after the other.
  double unfilled = 0;
  double steps = 0;
  for (double live = load.most_stash; live < limit; live += load.most_stash) {
    unfilled += limit - live;
    ++steps;
  }
  const double fixed = load.head + load.after_backward - load.least_weights;
  const double up = steps * load.least_forward;
  const double down = steps * load.least_backward;
  const bool apart = known - fixed >= up + down;
  const bool pure = apart && load.first_backward - load.head >= up &&
                    load.after_forward - load.most_forward >=
                        load.after_backward - load.least_weights + down;  // no F while memory empties

  double area = 0;
  double below = 0;
  int used = -1;
  const auto& stages = instance.stages_of[index(worker)];
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::size_t s = index(stages[i]);
    const double life = chain.backward_start[s] + instance.time[1][s] - chain.forward_start[s];
    area += instance.microbatches * instance.stash[s] * (life + load.least_weights);
    below += instance.stash[s];
    if (i + 1 == stages.size() || used == stages[i]) continue;
    const std::size_t next = index(stages[i + 1]);
    const double excess = excess_of(instance, chain, load, s, next, below);
    if (excess == 0) continue;
    used = stages[i + 1];
    const double least = std::min(instance.stash[s], instance.stash[next]);
    const double most_live = least > 0 ? std::floor(limit / least * (1 + 1e-9)) : infinity;
    if (pure) area += std::max(0.0, instance.microbatches - most_live) * excess;
  }
  const double ramps = unfilled * (apart ? load.least_forward + load.least_backward
                                         : std::max(load.least_forward, load.least_backward));
  return fixed + (area + ramps) / limit;
}

double bound_of(const Instance& instance) {
  const Chain chain = chain_of(instance);
  double bound = chain.after_forward[0];
  std::vector<Load> loads;
  for (int w = 0; w < instance.workers; ++w) {
    loads.push_back(load_of(instance, chain, w));
    bound = std::max(bound, work_bound(loads.back(), instance.microbatches));
  }
  double best = bound;
  for (int w = 0; w < instance.workers; ++w) {
    best = std::max(best, memory_bound(instance, chain, loads[index(w)], w, bound));
  }
  return best;
}

}  // namespace

double lower_bound(const SearchProblem& problem) { return bound_of(Instance(problem)); }

double least_memory_limit(const SearchProblem& problem) {
  const Instance instance(problem);
  double least = 0;
  for (const auto& stages : instance.stages_of) {
    double need = 0;
    for (const int s : stages) need += instance.stash[index(s)];
    least = std::max(least, need);
  }
  return least;
}

}  // namespace starpipe::plan
