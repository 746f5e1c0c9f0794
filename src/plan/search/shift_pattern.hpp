// SPDX-License-Identifier: Apache-2.0
#pragma once

// Schedules from a few numbers: due times that repeat, and list scheduling; private to plan.

#include <vector>

#include "plan/search/instance.hpp"
#include "plan/search/random.hpp"

namespace starpipe::plan::detail {

/// When F and B of each stage are due: a building block (source 004, section 2) that repeats with a period,
/// or, for groups of micro-batches, group by group with other distances within one. Only the order of the
/// due times matters. And the rules by which a worker leaves that order.
struct Pattern {
  std::vector<double> forward;   ///< of micro-batch 0, by stage
  std::vector<double> backward;  ///< of micro-batch 0, by stage
  double period = 1;             ///< of the mean micro-batch
  int group = 1;
  double forward_spacing = 1;   ///< within a group, in periods
  double backward_spacing = 1;  ///< within a group, in periods
  /// A job goes out of turn if the time until the next in turn arrives is this share of its own or more.
  double forward_gap = 1;
  double backward_gap = 1;
  double weight_gap = 1;
  int weight_backlog = 1 << 30;       ///< with more W waiting than this, one goes first
  bool weights_before_early = false;  ///< in a gap, W goes before F and B out of turn
  double spare = 0;                   ///< share of the memory that F out of turn leaves free
};

/// A pattern of random shape, with the durations of the instance or on a grid of equal ones.
Pattern random_pattern(const Instance& instance, Random& random);
/// One micro-batch after the other: within any limit that some schedule keeps.
Pattern serial_pattern(const Instance& instance);
/// A few random changes.
void mutate(Pattern& pattern, const Instance& instance, Random& random);

/// What list scheduling made of a pattern.
struct PatternRun {
  bool feasible = false;  ///< otherwise the rest says nothing
  double makespan = 0;
  double mean_end = 0;  ///< of the workers' last jobs
  Orders orders;        ///< when asked for
};

/// List scheduling. Each worker has a list of its F and B by due time, which must keep the memory limit if
/// every W follows its B at once. It runs them in turn, and W in the gaps or when a F in turn needs the
/// memory. Where the next in turn has not arrived, others go before it if the gap allows, F only if then
/// the rest of the list still keeps the limit. O(jobs (W + C)).
class ListScheduler {
 public:
  explicit ListScheduler(const Instance& instance);
  const PatternRun& run(const Pattern& pattern, bool with_orders = false);

 private:
  struct Worker {
    std::vector<JobId> list;  // F and B in turn
    std::size_t next = 0;     // first in the list that has not started
    double live = 0;          // memory
    double free_at = 0;
    double look_at = 0;  // when to choose the next job
  };
  enum class Choice : std::uint8_t { job, wait, stuck };

  bool make_lists();
  Choice choose(int worker, double now, JobId& chosen);
  bool early(int worker, double now, double gap, JobId& chosen);
  bool keeps_limit(const Worker& worker, JobId early, double size, double releasable) const;
  void start(int worker, double now, JobId job);
  void arrive(JobId job, double time, int from);
  [[nodiscard]] double due(int pass, int stage, int microbatch) const;

  const Instance& instance_;
  const Pattern* pattern_ = nullptr;
  PatternRun result_;
  std::vector<Worker> workers_;
  std::vector<double> arrival_;                   // by JobId; infinite until known
  std::vector<bool> started_;                     // by JobId
  std::array<std::vector<int>, 3> count_;         // started, by pass and stage
  std::vector<double> forward_at_, backward_at_;  // distance from micro-batch 0, by micro-batch
};

}  // namespace starpipe::plan::detail
