// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

// The periodic theory of source 002: patterns that repeat with a period, the memory that they mean, and the
// shortest period within a memory limit. docs/periodic.md is the tour. Passes are F and BW.

namespace starpipe::plan {

/// One stage of a chain: a layer of 002 (section 3.1), or layers that are placed together, summed up. Times
/// are in one unit, memory in another.
struct ChainStage {
  double forward = 1;     ///< u_F, time of F
  double backward = 1;    ///< u_B, time of BW
  double weights = 0;     ///< W_l, memory that the stage takes whatever the schedule
  double activation = 1;  ///< a_l, memory of each of its stashes

  /// U = u_F + u_B.
  [[nodiscard]] double time() const { return forward + backward; }
};

/// Runs `pass` of `stage` on `worker`, in period j from j * T + start on, for micro-batch j * k + shift
/// (002, section 3.1: t and h).
struct PeriodicOperation {
  int stage = 0;
  Pass pass = Pass::F;
  int worker = 0;
  double start = 0;
  int shift = 0;
};

/// A k-periodic pattern: operations that repeat every `period`, F and BW of each stage for k micro-batches.
struct PeriodicPattern {
  double period = 1;     ///< T
  int microbatches = 1;  ///< k
  std::vector<PeriodicOperation> operations;

  /// T / k: the time a micro-batch takes in the long run.
  [[nodiscard]] double normalized_period() const { return period / microbatches; }
};

/// Why the repeated pattern is no schedule of the chain, in one line; empty when it is one. It is when each
/// stage is on one worker, runs F and BW once for each micro-batch, no two operations of a worker overlap,
/// and none starts before what it waits for has ended (002, section 3.1). Times may be off by 1e-9 T. O(n log
/// n) for n operations.
std::string pattern_problem(const PeriodicPattern& pattern, std::span<const ChainStage> chain);

/// NCA, the number of concurrent activations: by stage, the most stashes that are live at once (002, section
/// 3.2). It follows from the shifts: live after F are the micro-batches up to its own that BW has not had.
/// Throws InputError with `pattern_problem`'s message. O(n log n + n k).
std::vector<int> concurrent_activations(const PeriodicPattern& pattern, std::span<const ChainStage> chain);

/// What each worker holds at most: the sum of W_l + NCA_l a_l over its stages (002, section 3.2). Throws as
/// `concurrent_activations`.
std::vector<double> pattern_memory(const PeriodicPattern& pattern, std::span<const ChainStage> chain);

/// The pattern repeated for micro-batches 0 to B - 1, in the order that it gives each worker. Run without a
/// timetable, each pass as soon as it can, that takes no longer than T for k micro-batches in the long run,
/// and no stage holds more than NCA stashes. Throws InputError with `pattern_problem`'s message, or for
/// microbatches < 1. O(jobs log jobs).
Schedule unrolled(std::string_view name, const PeriodicPattern& pattern, std::span<const ChainStage> chain,
                  int microbatches);

/// A pattern without idle time on the busiest worker for any allocation: stage s on worker `workers[s]`,
/// contiguous or not. Memory is no concern (002, theorem 1: there always is such a choice of shifts). Throws
/// InputError for a chain that takes no time, a time that is negative or not finite, or a worker below 0.
PeriodicPattern busiest_worker_pattern(std::span<const ChainStage> chain, std::span<const int> workers);

// ---- One stage a worker: stage s on worker s ----

/// By stage, the number of its group in 1F1B*(T): groups of stages that take at most T together, made
/// greedily from the last stage on, which is in group 1 (002, algorithm 1, phase 1). Throws InputError as
/// `busiest_worker_pattern`, or for a T that some stage alone exceeds. O(stages).
std::vector<int> stage_groups(std::span<const ChainStage> chain, double period);

/// 1F1B*(T) (002, algorithm 1): stages of a group run as an equal shift pattern, BW of group g from g - 1
/// periods after F. A stage of group g holds g stashes, and no 1-periodic pattern of period T holds fewer on
/// any stage (theorem 3). Throws as `stage_groups`.
PeriodicPattern one_forward_one_backward_star(std::span<const ChainStage> chain, double period);

/// By stage, the most stashes that fit into `memory` beside the weights. Throws InputError naming the first
/// stage that has no room for one.
std::vector<int> stash_limits(std::span<const ChainStage> chain, double memory);

/// The shortest period of any 1-periodic pattern that holds at most `limits[s]` stashes of stage s: the
/// smallest T for which 1F1B*(T) keeps them. It is what one of its groups takes, so there are finitely many
/// candidates; a bisection that skips to them ends in O(log(range)) rounds of O(stages). Throws InputError as
/// `stage_groups`, or for limits that are not one a stage and at least 1.
double least_period(std::span<const ChainStage> chain, std::span<const int> limits);

/// The 1-periodic `pattern` without each (k + 1)-th micro-batch (002, theorem 4): k-periodic with period (k +
/// 1) T. Where NCA was g it is g - floor(g / (k + 1)). Throws InputError for k < 1 or a pattern that is not
/// 1-periodic.
PeriodicPattern thinned(const PeriodicPattern& pattern, int k);

/// A time per micro-batch that no schedule within the limits can beat, periodic or not: a stage takes U, and
/// has a micro-batch in hand for at least as long as it and the stages after it take, `limits[s]` of them at
/// once.
double period_bound(std::span<const ChainStage> chain, std::span<const int> limits);

/// The result of `best_pattern`.
struct PeriodicSearch {
  PeriodicPattern pattern;
  /// No pattern considered has a shorter normalized period: `period_bound` is reached, or all were tried.
  bool optimal = false;
};

/// The k-periodic pattern with the shortest normalized period within the limits, k from 1 to `most`; the
/// least such k. Every order is considered in which a stage takes micro-batches one after the other, F and BW
/// alike, and holds at most twice as many stashes as there are stages. Branch and bound from the last stage
/// on; starts from 1F1B* and its thinned patterns. Ends after `work` steps (of some nanoseconds each) with
/// what it has. Throws as `least_period`, or for most < 1. Deterministic.
PeriodicSearch best_pattern(std::span<const ChainStage> chain, std::span<const int> limits, int most,
                            std::int64_t work = 100'000'000);

}  // namespace starpipe::plan
