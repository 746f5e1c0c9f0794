// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include "plan/search/instance.hpp"
#include "plan/search/shift_pattern.hpp"

namespace starpipe::plan::detail {

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
class PatternScheduler {
 public:
  explicit PatternScheduler(const Instance& instance);
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
