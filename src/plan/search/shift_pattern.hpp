// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/search/instance.hpp"
#include "starpipe/base/random.hpp"

namespace starpipe::plan {

/// A schedule given by a few numbers. Due times of F and B of each stage form a building block (Controllable
/// Memory, section 2) that repeats with a period; only their order matters. With groups of micro-batches, the
/// distances within a group differ. The rest are rules for when a worker leaves the order of the due times.
struct ShiftPattern {
  std::vector<double> forward;   ///< [stage], due time of F of micro-batch 0
  std::vector<double> backward;  ///< [stage], due time of B of micro-batch 0
  double period = 1;             ///< mean distance of micro-batches
  int group = 1;                 ///< micro-batches in a group
  double forward_spacing = 1;    ///< distance of F within a group, in periods
  double backward_spacing = 1;   ///< distance of B within a group, in periods
  /// A job runs early if the gap, the time until the next job in order can start, is at least this multiple
  /// of the job's duration.
  double forward_gap = 1;
  double backward_gap = 1;
  double weight_gap = 1;
  int weight_backlog = 1 << 30;       ///< if more W wait than this, W runs before the job in order
  bool weights_before_early = false;  ///< in a gap, W runs before early F and B
  double spare = 0;                   ///< share of the memory limit that an early F leaves free
  /// [chunk], share of the micro-batches whose stashes have no home, spread evenly; empty: none.
  std::vector<double> remade;
};

/// Returns a pattern of random shape, with the durations of the instance or with equal durations on a grid.
/// `homes`: whether some stashes may have no home.
ShiftPattern random_pattern(const Instance& instance, Random& random, bool homes);
/// Returns the pattern that runs the micro-batches sequentially. It keeps every memory limit that some
/// schedule keeps.
ShiftPattern serial_pattern(const Instance& instance);
/// Makes one to three random changes.
void mutate(ShiftPattern& pattern, const Instance& instance, Random& random);

/// The schedule that list scheduling makes of a pattern.
struct PatternRun {
  bool feasible = false;  ///< if false, the other members have no meaning
  double makespan = 0;
  double mean_end = 0;  ///< mean over the workers of the end of the last job
  Orders orders;        ///< empty unless asked for
};

/// List scheduling. Each worker has a list of its F and B, sorted by due time. The list must keep the memory
/// limit if every W directly follows its B. The worker runs the list in order. It runs W in gaps, and when
/// the next F needs the memory. A gap is the time until the inputs of the next job of the list arrive. In a
/// gap, a later job of the list may run early; an F only if the rest of the list still keeps the limit.
/// O(jobs (W + C)).
class PatternScheduler {
 public:
  explicit PatternScheduler(Instance instance);
  /// The result is valid until the next call.
  const PatternRun& run(const ShiftPattern& pattern, bool with_orders = false);

 private:
  struct Worker {
    std::vector<JobId> list;  // F and B by due time
    std::size_t next = 0;     // first job of the list that has not started
    double live = 0;          // memory in use
    double free_at = 0;
    double look_at = 0;  // time at which to choose the next job
  };
  enum class Choice : std::uint8_t { job, wait, stuck };

  bool make_lists();
  Choice choose(int worker, double now, JobId& chosen);
  bool early(int worker, double now, double gap, JobId& chosen);
  [[nodiscard]] bool keeps_limit(int worker, JobId early, double size, double releasable) const;
  bool pass_in_list(int worker, JobId job, double more, double& live) const;
  void start(int worker, double now, JobId job);
  [[nodiscard]] double due(int pass, int stage, int microbatch) const;

  Instance instance_;  // with the pattern's homes
  const ShiftPattern* pattern_ = nullptr;
  PatternRun result_;
  std::vector<Worker> workers_;
  std::vector<double> arrival_;                   // [JobId], arrival of its inputs; infinite until known
  std::vector<bool> started_;                     // [JobId]
  std::array<std::vector<int>, 3> count_;         // [pass][stage], number of started jobs
  std::vector<double> forward_at_, backward_at_;  // [micro-batch], due time relative to micro-batch 0
};

}  // namespace starpipe::plan
