// SPDX-License-Identifier: Apache-2.0
#pragma once

// A search problem as flat arrays; private to plan.

#include <array>
#include <optional>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/search/search_problem.hpp"

namespace starpipe::plan::detail {

/// The jobs of each worker in the order it runs them.
using Orders = std::vector<std::vector<JobId>>;

/// Jobs have the numbers of a Schedule whose backward passes are all split. Each waits for one other at
/// most: F for F of the stage before, B for B of the stage after (F where there is none), W for B. That B
/// needs F of its own stage follows.
struct Instance {
  explicit Instance(const SearchProblem& problem);

  [[nodiscard]] JobId job(int pass, int stage, int microbatch) const {
    return static_cast<JobId>((microbatch * stages + stage) * 3 + pass);
  }
  [[nodiscard]] static int pass_of(JobId job) { return static_cast<int>(job % 3); }
  [[nodiscard]] int stage_of(JobId job) const { return stage_of_job[job]; }
  [[nodiscard]] int microbatch_of(JobId job) const { return static_cast<int>(job) / 3 / stages; }
  [[nodiscard]] JobId jobs() const { return static_cast<JobId>(stages * microbatches * 3); }
  [[nodiscard]] double time_of(JobId job) const {
    return time[job % 3][static_cast<std::size_t>(stage_of(job))];
  }

  /// Whether `live` stashes' memory keeps the limit.
  [[nodiscard]] bool fits(double live) const { return live <= limit_with_slack; }
  /// By worker, the most memory that its stashes take.
  [[nodiscard]] std::vector<double> peak_memory(const Orders& orders) const;
  [[nodiscard]] bool fits(const Orders& orders) const;

  int workers;
  int microbatches;
  int stages;
  std::vector<int> worker_of;               // by stage
  std::vector<int> stage_of_job;            // by JobId: a table, for it is asked all the time
  std::vector<std::vector<int>> stages_of;  // by worker, ascending
  std::array<std::vector<double>, 3> time;  // by pass F, B, W and stage
  std::vector<double> forward_lag;          // of the transfer from a stage to the next
  std::vector<double> backward_lag;         // of the transfer to a stage from the next
  std::vector<double> stash;                // by stage
  double limit;
  double limit_with_slack;  // sums of fractions may be a rounding error over it
};

/// The orders as a schedule named "search", with memory limits where one number of stashes says it.
Schedule to_schedule(const Instance& instance, const Orders& orders);

/// What `schedule` does, with split backward passes; nothing if its stages are elsewhere or it needs more
/// memory.
std::optional<Orders> from_schedule(const Instance& instance, const Schedule& schedule, const Costs& costs);

}  // namespace starpipe::plan::detail
