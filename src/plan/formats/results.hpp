// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/schedules/pattern.hpp"
#include "plan/search/partition.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/search/search.hpp"
#include "starpipe/plan/search/search_problem.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A predicted run. Refers to its parts, which must outlive it.
struct PredictedRun {
  const Schedule& schedule;
  const Costs& costs;
  const Timeline& timeline;
  std::string unit = {};                      ///< of all times: "s", or empty without a name
  std::optional<Reordering> reordering = {};  ///< nullopt if the schedule's own order is kept
  /// The discipline before `simulate` fixed the order; nullopt: the schedule's.
  std::optional<Discipline> discipline = {};
};

/// Returns the run as JSON: `schedule_json` with "reordered" and the members of the object `more`. Its "ops"
/// are last, since they are long. Callers include <nlohmann/json.hpp>.
nlohmann::ordered_json predicted_json(const PredictedRun& run, const nlohmann::ordered_json& more);
/// Returns a line (without a newline) that names the parts of the schedule that a CSV file lacks, or an empty
/// text.
std::string lost_in_csv(const Schedule& schedule);
/// The run of a schedule in the same order with all stashes kept, to see what recomputation costs.
struct KeptRun {
  int remade = 0;   ///< stashes that the schedule makes again
  int copied = 0;   ///< stashes that it copies to their homes
  int stashes = 0;  ///< all
  double makespan = 0;
  std::vector<int> peak_stashes = {};  ///< by worker
};
/// Returns nullopt if all stashes of the schedule wait with their workers. Simulates.
std::optional<KeptRun> with_stashes_kept(const Schedule& schedule, const Costs& costs);
/// Returns one line for people with the parts of `with_stashes_kept`, with a newline at its end; empty
/// without them.
std::string describe_kept(const PredictedRun& run);
/// Returns the page of the predicted run. `more`: PageRun::report.
std::string predicted_page(const PredictedRun& run, const nlohmann::ordered_json& more);
/// Returns the predicted run as an SVG image.
std::string predicted_svg(const PredictedRun& run);
/// Returns the predicted run as a Chrome trace. A unit of time without a name is shown as a second.
std::string predicted_trace(const PredictedRun& run);

/// A question to the periodic theory, as `starpipe periodic` takes it.
struct PeriodicRequest {
  std::vector<ChainStage> chain = {};
  std::vector<int> workers = {};      ///< of each stage; empty: stage s is on worker s
  std::optional<double> memory = {};  ///< of each worker, for weights and stashes; nullopt: no limit
  std::optional<int> repeat = {};     ///< patterns of up to so many micro-batches; nullopt: 1
  std::optional<double> period = {};  ///< take 1F1B* with this period
};

struct PeriodicResult {
  PeriodicPattern pattern;
  /// Lower bound on the time per micro-batch of all schedules with this placement and memory.
  double bound;
  /// No pattern of up to `best_of` micro-batches is shorter; 0: not proved.
  int best_of = 0;
};

/// Returns the shortest pattern that the request allows. Throws RequestError for a period or a number of
/// repetitions together with workers, and if some worker would hold more than `memory`; else as
/// `best_pattern`, `stash_limits`, `one_forward_one_backward_star` and `busiest_worker_pattern` do.
PeriodicResult solve_periodic(const PeriodicRequest& request);

/// Returns the costs of the chain for `simulate`: B is the whole backward pass, W takes no time.
Costs costs_of_chain(std::span<const ChainStage> chain);

/// Returns {"pattern": {...}}: what the theory adds to the JSON of the unrolled schedule. Callers include
/// <nlohmann/json.hpp>.
nlohmann::ordered_json periodic_json(const PeriodicResult& result, std::span<const ChainStage> chain);

/// Returns the members that a search adds to the JSON of its schedule: "lower_bound", and in "search" the
/// layout, the number of chunks, the options and the peak memory. Callers include <nlohmann/json.hpp>.
nlohmann::ordered_json search_json(const SearchResult& result, const SearchOptions& options);

/// A chain of units to cut for a named schedule, as `starpipe partition` takes it.
struct ScheduledPartition {
  /// Units, workers, links and limits. Allocation, placement and stashes follow from the schedule.
  PartitionRequest request = {};
  /// Name of a schedule. It decides how many stashes each worker holds, and the result has its prediction.
  std::string schedule = "1f1b";
  int microbatches = 1;
  std::optional<int> chunks = {};     ///< stages on each worker; nullopt: the schedule's own number
  std::optional<Layout> layout = {};  ///< of several chunks; nullopt: loop
  bool general = false;               ///< a worker may get any units
};

struct PartitionResult {
  PartitionRequest request;  ///< with allocation, placement and stashes
  Partition found;
  Costs costs;        ///< of the stages
  Timeline timeline;  ///< of the schedule with these stages; transfers overlap compute
};

/// Returns the best partition for the schedule, and its predicted run. `kinds` of the request must not be
/// empty. Throws RequestError for a part that cannot be followed ("chunks: ...", "layout: ...", "general:
/// ...", "schedule: ...", "microbatches: ...", "units: ..."), and InputError as `partition` and
/// `make_schedule` do.
PartitionResult partition_for(const ScheduledPartition& asked);

}  // namespace starpipe::plan
