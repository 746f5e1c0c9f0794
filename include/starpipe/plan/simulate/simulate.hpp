// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// Time of each pass of one stage, in any one unit. BW lasts B + W.
struct Durations {
  double F = 1;
  double B = 1;
  double W = 1;

  [[nodiscard]] double of(Pass pass) const;
  friend bool operator==(const Durations&, const Durations&) = default;
};

/// Bytes of what one stage and micro-batch exchanges and keeps. All zero when no model is known.
struct StageSizes {
  std::uint64_t activation = 0;      ///< the stage's output
  std::uint64_t gradient = 0;        ///< gradient with respect to the stage's output
  std::uint64_t stash = 0;           ///< what F keeps for B and W
  std::uint64_t gradient_stash = 0;  ///< what B keeps for W where the backward pass is split
  std::uint64_t weights = 0;         ///< the stage's parameters, as passes read them
  std::uint64_t master = 0;          ///< what the optimizer has of them besides; 0 when it updates `weights`

  /// Of what the optimizer updates. As much is a gradient, and each state.
  [[nodiscard]] std::uint64_t updated() const { return master > 0 ? master : weights; }
};

/// What things cost. Per-stage vectors have one entry a stage, or a single one for all stages.
struct Costs {
  std::vector<Durations> durations = {Durations{}};
  std::vector<StageSizes> sizes = {StageSizes{}};
  /// A transfer between two workers takes alpha + beta * bytes.
  double alpha = 0;
  double beta = 0;
  /// Transfers overlap compute: a result leaves when it is there, weights at time 0. Otherwise a worker
  /// fetches the inputs of a job, one after the other, when it has picked it.
  bool prefetch = true;

  [[nodiscard]] const Durations& duration(int stage) const;
  [[nodiscard]] const StageSizes& size(int stage) const;
};

/// The costs of a schedule with recomputation: B, and with it BW, lasts as long as F and B. `simulate` takes
/// durations as they are, so that measured ones, which have F in B, fit too.
Costs with_recomputation(Costs costs);

/// When a job computed.
struct Span {
  double start = 0;
  double end = 0;
};

/// Things of one kind that a worker received from others.
struct Received {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const Received&, const Received&) = default;
};

/// Everything that moves to one worker in a step. What a worker receives once and keeps is counted once:
/// an activation that two of its jobs read, the weights of a stage from one holder for all micro-batches of
/// the step (they are dropped after their last use).
struct Transfers {
  Received activations;       ///< outputs of preceding stages, for F, and for B that recomputes
  Received stashes;           ///< where B or W runs on another worker than what made it; B's part for W
  Received gradients;         ///< gradients of succeeding stages, for B
  Received weights;           ///< parameters from their holder, for F and B
  Received weight_gradients;  ///< contributions reduced here, and sums sent to further holders
  friend bool operator==(const Transfers&, const Transfers&) = default;
};

/// Per worker, what `w` alone makes it receive in one step (source 000, "Latency, network, and memory
/// usage from w(s,b,d)"). Independent of time. O(jobs).
std::vector<Transfers> count_transfers(const Schedule& schedule, const Costs& costs);

/// What one worker sends another in a step, all kinds of `Transfers` together.
struct Flow {
  int from = 0;
  int to = 0;
  Received sent;
  friend bool operator==(const Flow&, const Flow&) = default;
};

/// Who sends to whom: one entry for each pair of workers between which anything moves, by sender, then by
/// receiver. Sums over the senders are those of `count_transfers`. O(jobs log workers).
std::vector<Flow> count_flows(const Schedule& schedule, const Costs& costs);

/// One move of the weight-gradient reduction: the contribution of worker `from` is added to that of
/// `into` (or replaces it, for the broadcast to further holders).
struct ReductionStep {
  int stage = 0;
  int from = 0;
  int into = 0;
  bool broadcast = false;
  friend bool operator==(const ReductionStep&, const ReductionStep&) = default;
};

/// How the weight gradients of `stage`, accumulated on each worker that computes W or BW for it, reach
/// every holder of its weights: a binary tree onto the first holder, in an order fixed by the schedule
/// (so sums are reproducible), then a copy to each further holder.
std::vector<ReductionStep> reduction_plan(const Schedule& schedule, int stage);

/// Workers that hold the weights of `stage`, ascending: {w_weights(s, b, d)}.
std::vector<int> weight_holders(const Schedule& schedule, int stage);

/// Workers that accumulate a weight gradient of `stage` (run its W or BW), ascending.
std::vector<int> gradient_workers(const Schedule& schedule, int stage);

/// A schedule's run, predicted or measured, and what follows from it.
struct Timeline {
  /// By JobId, in the unit of the durations. A predicted step begins at time 0; a first job that must fetch
  /// its weights starts later. Slots without a job have an empty span.
  std::vector<Span> spans;
  double makespan = 0;         ///< first start to last end, all workers
  double bubble_fraction = 0;  ///< 1 - busy / (workers * makespan)
  double device_span = 0;      ///< the longest first start to last end of one worker
  /// 1 - work / device_span, work being the longest busy time of one worker: the zero-bubble papers'
  /// bubble rate (source 004, Table 4).
  double device_bubble_fraction = 0;

  // Per worker:
  std::vector<double> busy;                          ///< time spent computing
  std::vector<int> peak_activations;                 ///< most live stashes
  std::vector<std::uint64_t> peak_activation_bytes;  ///< most bytes of what MemoryStep counts
  std::vector<Transfers> received;
};

/// From `time` on, a worker holds this.
struct MemoryStep {
  double time = 0;
  int stashes = 0;
  std::uint64_t bytes = 0;  ///< of stashes, of B's parts for W, of inputs kept to recompute
};

/// Per worker, what it holds over time, ascending; times are those of `spans` (by JobId).
///
/// A stash is live from the start of F to the end of the last of B and W. Where these run on several
/// workers, the worker of F holds it until F, or what of B and W runs there too, has ended; each other one
/// from the start of the first of B and W there to the end of the last: so what a worker holds follows from
/// the order of its own jobs, and what is on its way, or waits unread, is the transfer's. B's part for W
/// likewise, from the start of B. With recomputation it is B that makes the stash; until B ends a worker
/// keeps the stage's inputs, each from the start of the first F or B there that reads it to the end of the
/// last. (The data that sources read are there anyway.) Intervals are half-open: what ends when another
/// starts does not add to it. O(jobs log jobs).
std::vector<std::vector<MemoryStep>> memory_over_time(const Schedule& schedule, const Costs& costs,
                                                      const std::vector<Span>& spans);

/// What follows from the spans of a run, by JobId; predicted and measured runs go through this one function.
/// O(jobs log jobs).
Timeline evaluate(const Schedule& schedule, const Costs& costs, std::vector<Span> spans);

/// Runs the schedule: each worker picks among its ready jobs by the schedule's discipline (the greedy
/// rule is source 000's simulator, with the comma it means in the update of t(j*)). Deterministic: all
/// that ends or arrives at one time is seen before any worker picks; what jobs of zero length then end at
/// the same time is a further round. O(jobs log jobs).
///
/// Throws InputError with `check`'s message when the schedule cannot finish, or when a cost is negative or
/// a per-stage vector has a wrong length.
Timeline simulate(const Schedule& schedule, const Costs& costs = {});

/// The same jobs, w and limits under the ordered discipline, each worker's order that in which `simulate`
/// starts its jobs: decided once, it is what every run does, whatever its timing. Spans would not do: jobs of
/// no length may start together, and one of them may have ended before the other could. Cost and errors as
/// of `simulate`.
Schedule ordered_as_simulated(const Schedule& schedule, const Costs& costs = {});

}  // namespace starpipe::plan
