// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::plan {

/// Start and end of a job's computation.
struct Span {
  double start = 0;
  double end = 0;
};

/// A schedule's run, predicted or measured, and the figures that follow from it.
struct Timeline {
  /// By JobId, in the unit of the durations. A predicted step begins at time 0; its first job starts later
  /// when it must fetch its weights. Ids without a job have an empty span.
  std::vector<Span> spans;
  /// By worker: its jobs in the order in which they ran. Spans alone do not tell the order of jobs that take
  /// no time.
  std::vector<std::vector<JobId>> order;
  /// By JobId: when all inputs of the job were on its worker. Empty where this is not known. `evaluate`
  /// leaves it empty, `simulate` fills it. Without prefetch these are the starts, since a worker fetches the
  /// inputs just before.
  std::vector<double> ready;
  double makespan = 0;  ///< first start to last end, all workers
  /// First start until the weight gradients of all stages are summed on all of their holders, at least the
  /// makespan; see `gradients_summed`. nullopt where no gradient is summed over workers, and from `evaluate`.
  std::optional<double> gradients_summed = {};
  double bubble_fraction = 0;  ///< 1 - busy / (workers * makespan)
  /// The time of all R / (workers * makespan). `bubble_fraction` counts R as work. The sum of both is the
  /// share that F, B and W leave.
  double recomputed_fraction = 0;
  double device_span = 0;  ///< the longest first start to last end of one worker
  /// 1 - work / device_span, work being the longest busy time of one worker: the zero-bubble papers'
  /// bubble rate (Controllable Memory, Table 4).
  double device_bubble_fraction = 0;

  // Per worker:
  std::vector<double> busy;                     ///< time spent computing
  std::vector<int> peak_stashes;                ///< largest number of live stashes
  std::vector<std::uint64_t> peak_stash_bytes;  ///< largest MemoryStep::bytes
  std::vector<Transfers> received;
};

/// Returns the earliest start of any job: 0 for most predicted timelines.
double first_start(const Timeline& timeline);

/// Makes the timeline of a run. `spans`: of each job, by JobId. `order`: for each worker, its jobs in the
/// order in which they ran. Used for predicted and measured runs alike. O(jobs log jobs).
Timeline evaluate(const Schedule& schedule, const Costs& costs, std::vector<Span> spans,
                  std::vector<std::vector<JobId>> order);

/// One job of a measured step. Times in seconds on one clock.
struct JobRun {
  JobId job = 0;
  int worker = 0;        ///< that ran it; differs from w under policies that ignore w
  double submitted = 0;  ///< its task was inserted on the rank that ran it
  double ready = 0;      ///< all its inputs were on this rank
  double start = 0;
  double end = 0;
};

/// Times of single jobs, which replace those that `Costs` gives for all jobs of a stage. Each vector is by
/// JobId with `Schedule::id_count()` entries, in the unit of the costs; entries of ids without a job are not
/// read. An empty vector replaces nothing.
struct JobTimes {
  /// How long the job computes.
  std::vector<double> duration = {};
  /// For a job that waits for jobs on other workers: the time from the end of the last of these until all
  /// that it reads from there has arrived. For a job that only takes its weights from another worker: the
  /// time from time 0 until they have arrived. Other jobs receive nothing, and their entries are not read.
  /// Without prefetch: how long the worker fetches the job's inputs.
  std::vector<double> transfer = {};
};

}  // namespace starpipe::plan
