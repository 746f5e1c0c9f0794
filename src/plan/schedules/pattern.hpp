// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/schedules/chain.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

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
struct PeriodicPattern {
  double period = 1;     ///< T
  int microbatches = 1;  ///< k
  std::vector<PeriodicOperation> operations;

  /// T / k: the time a micro-batch takes in the long run.
  [[nodiscard]] double normalized_period() const { return period / microbatches; }
};

/// One line that says why the repeated pattern is not a valid schedule of the chain; empty for a valid
/// pattern. In a valid pattern each stage is on one worker and runs F and BW once for each micro-batch, no
/// two operations of a worker overlap, and no operation starts before its inputs are there (Pipelined Model
/// Parallelism, section 3.1). Times may be off by 1e-9 T. O(n log n) for n operations.
std::string pattern_problem(const PeriodicPattern& pattern, std::span<const ChainStage> chain);

/// NCA, the number of concurrent activations: for each stage, the largest number of stashes that are live at
/// once (Pipelined Model Parallelism, section 3.2). It follows from the shifts: after an F, the live stashes
/// are those of the micro-batches up to this one whose BW has not started. Throws InputError with
/// `pattern_problem`'s message. O(n log n + n k).
std::vector<int> concurrent_activations(const PeriodicPattern& pattern, std::span<const ChainStage> chain);

/// Peak memory of each worker: the sum of W_l + NCA_l a_l over its stages (Pipelined Model Parallelism,
/// section 3.2). Throws as `concurrent_activations`.
std::vector<double> pattern_memory(const PeriodicPattern& pattern, std::span<const ChainStage> chain);

/// The pattern repeated for micro-batches 0 to B - 1, as an ordered schedule with the pattern's order on each
/// worker. The schedule needs no timetable: if each pass starts as early as it can, k micro-batches take at
/// most T in the long run and no stage holds more than NCA stashes. Throws InputError with
/// `pattern_problem`'s message, or for microbatches < 1. O(jobs log jobs).
Schedule unrolled(std::string_view name, const PeriodicPattern& pattern, std::span<const ChainStage> chain,
                  int microbatches);

/// The 1-periodic `pattern` without each (k + 1)-th micro-batch (Pipelined Model Parallelism, theorem 4): a
/// k-periodic pattern of period (k + 1) T. NCA falls from g to g - floor(g / (k + 1)). Throws InputError for
/// k < 1 or a pattern that is not 1-periodic.
PeriodicPattern thinned(const PeriodicPattern& pattern, int k);

}  // namespace starpipe::plan
