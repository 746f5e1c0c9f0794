// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

// The periodic theory of Pipelined Model Parallelism asks how short a period a chain of stages can have
// within a memory limit. docs/periodic.md is the tour. Passes are F and BW.

namespace starpipe::plan {

/// Costs of one stage of a chain: a layer of the paper (section 3.1), or the sum over layers that are placed
/// together. All times of a chain are in one unit, all memory in another.
struct ChainStage {
  double forward = 1;     ///< u_F, time of F
  double backward = 1;    ///< u_B, time of BW
  double weights = 0;     ///< W_l, memory that the stage takes under any schedule
  double activation = 1;  ///< a_l, memory of each of its stashes

  /// Returns U = u_F + u_B.
  [[nodiscard]] double time() const { return forward + backward; }
};

/// Returns the largest number of stashes of each stage that fits into `memory` with the stage's weights.
/// Throws InputError naming the first stage that has no room for one stash.
std::vector<int> stash_limits(std::span<const ChainStage> chain, double memory);

/// Throws InputError for an empty chain, a time or size that is negative or not finite, or no time at all.
void require_chain(std::span<const ChainStage> chain);
/// Throws InputError unless there is one limit per stage, each at least 1; also throws as `require_chain`.
void require_limits(std::span<const ChainStage> chain, std::span<const int> limits);

/// Returns U of the stage that takes longest: no period is shorter.
double longest_stage(std::span<const ChainStage> chain);

/// One pass of one stage on one worker, repeated every period. In period j it starts at j * T + start and
/// runs micro-batch j * k + shift (Pipelined Model Parallelism, section 3.1: t and h).
struct PeriodicOperation {
  int stage = 0;
  Pass pass = Pass::F;
  int worker = 0;
  double start = 0;
  int shift = 0;
};

/// A k-periodic pattern: operations that repeat every `period`, F and BW of each stage for k micro-batches.
/// Each stage is on one worker and runs F and BW once for each micro-batch, no two operations of a worker
/// overlap, and no operation starts before its inputs are there (Pipelined Model Parallelism, section 3.1).
struct PeriodicPattern {
  double period = 1;     ///< T
  int microbatches = 1;  ///< k
  std::vector<PeriodicOperation> operations;

  /// Returns T / k: the time a micro-batch takes in the long run.
  [[nodiscard]] double normalized_period() const { return period / microbatches; }
};

/// Returns NCA, the number of concurrent activations: for each stage, the largest number of stashes that are
/// live at once (Pipelined Model Parallelism, section 3.2). It follows from the shifts: after an F, the live
/// stashes belong to the micro-batches up to this one whose BW has not started. O(n k) for n operations.
std::vector<int> concurrent_activations(const PeriodicPattern& pattern, std::span<const ChainStage> chain);

/// Returns the peak memory of each worker: the sum of W_l + NCA_l a_l over its stages (Pipelined Model
/// Parallelism, section 3.2).
std::vector<double> pattern_memory(const PeriodicPattern& pattern, std::span<const ChainStage> chain);

/// Returns the pattern repeated for micro-batches 0 to B - 1, as an ordered schedule with the pattern's order
/// on each worker. The schedule needs no timetable: if each pass starts as early as it can, k micro-batches
/// take at most T in the long run and no stage holds more than NCA stashes. O(jobs log jobs).
Schedule unrolled(std::string_view name, const PeriodicPattern& pattern, std::span<const ChainStage> chain,
                  int microbatches);

/// Returns the 1-periodic `pattern` without each (k + 1)-th micro-batch (Pipelined Model Parallelism, theorem
/// 4): a k-periodic pattern of period (k + 1) T. NCA falls from g to g - floor(g / (k + 1)).
PeriodicPattern thinned(const PeriodicPattern& pattern, int k);

/// Makes a k-periodic pattern from the times at which micro-batches 0 to k - 1 run. The pattern repeats them
/// for all other micro-batches.
class PatternBuilder {
 public:
  /// Throws InputError for a period that is not finite.
  PatternBuilder(double period, int microbatches);

  /// Adds an operation: `pass` of `microbatch` on `stage` starts at `time`, which may be in any period.
  void add(int stage, Pass pass, int worker, double time, int microbatch);
  /// Returns the pattern of all operations added. As in Pipelined Model Parallelism, the first BW of stage 0
  /// in the period has shift 0. Stage 0 must have a BW.
  [[nodiscard]] PeriodicPattern pattern() const;

 private:
  PeriodicPattern pattern_;
};

// 1F1B* of Pipelined Model Parallelism: stage s of a chain on worker s.

/// Returns the group number of each stage in 1F1B*(T) (Pipelined Model Parallelism, algorithm 1, phase 1).
/// Groups are consecutive stages that take at most T together. They are filled greedily from the last stage
/// on, which is in group 1. Throws InputError for an invalid chain, or for a T that some stage alone exceeds.
/// O(stages).
std::vector<int> stage_groups(std::span<const ChainStage> chain, double period);

/// 1F1B*(T) (Pipelined Model Parallelism, algorithm 1). The stages of a group run sequentially, and BW of
/// group g starts g - 1 periods after F. A stage of group g holds g stashes; no 1-periodic pattern of period
/// T holds fewer on any stage (theorem 3). Throws as `stage_groups`.
PeriodicPattern one_forward_one_backward_star(std::span<const ChainStage> chain, double period);

/// Returns the shortest period of any 1-periodic pattern that holds at most `limits[s]` stashes of stage s:
/// the smallest T for which 1F1B*(T) keeps the limits. This T is the total time of one of its groups, so
/// there are finitely many candidates; a bisection that jumps from candidate to candidate takes O(log(range))
/// rounds of O(stages). Throws InputError for an invalid chain, or unless there is one limit per stage, each
/// at least 1.
double min_period(std::span<const ChainStage> chain, std::span<const int> limits);

/// Returns a pattern in which the busiest worker never idles, for stage s on worker `workers[s]`, contiguous
/// or not. Memory is not limited; such shifts always exist (Pipelined Model Parallelism, theorem 1). Throws
/// InputError for a chain that takes no time, a time that is negative or not finite, or a number of workers
/// that is not the number of stages.
PeriodicPattern busiest_worker_pattern(std::span<const ChainStage> chain, std::span<const int> workers);

}  // namespace starpipe::plan
