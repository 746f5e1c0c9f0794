// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/schedule/stage_graph.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A schedule read from a file, and the costs that the file states (unit costs where it states none).
struct ImportedSchedule {
  Schedule schedule;
  Costs costs;
  std::string unit = {};  ///< of the costs' times: "s", or empty without a name
};

/// Gives the stage graph of a file that does not state one. Throws InputError when no graph has this number
/// of stages.
using GraphOfStages = std::function<StageGraph(int stages)>;

/// Reads a schedule from JSON (`schedule_from_json`) or CSV (`schedule_from_csv`). The extension of
/// `source_name` decides; without a known extension, a text that starts with a brace is JSON. Throws
/// InputError as these do.
ImportedSchedule schedule_from_text(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph = StageGraph::chain);

/// Returns a schedule and one run of it as one JSON object: the output of `schedule show --format json`,
/// which `schedule_from_json` reads back.
///
/// Times are in the unit of the durations; memory is in stage activations. Arrays are indexed by worker;
/// "ops" has one array for each worker, sorted by start. "durations" is an object when all stages cost the
/// same, else an array with one object per stage. "stage_graph" (edges), "memory_limits",
/// "comm_per_byte", "prefetch", "sizes", "peak_stash_bytes" and "received_bytes" appear only where they
/// differ from the default: a chain, none, 0, true, all zero. The command line adds "reordered"
/// (`reordering_json`) and other members about how it got the schedule. Callers that look inside the result
/// include <nlohmann/json.hpp>. `unit`: of all times, "s", or empty for a unit without a name ("unit" is then
/// left out).
nlohmann::ordered_json schedule_json(const Schedule& schedule, const Costs& costs, const Timeline& timeline,
                                     const std::string& unit = {});

/// Reads a schedule from JSON, from starpipe or any other program.
///
/// docs/schedule-files.md describes the format. Only "ops" is required: for each worker, an array of {"op",
/// "stage", "microbatch"}, with "weights_from" where the weights come from another worker. "stages",
/// "microbatches" and "workers" follow from it; where they are given, they must agree. A worker runs its ops
/// in the order of the array: n is the position in the array, used by "discipline" (ordered without this
/// key). Times and figures of the written run must have the right type; they are not used. O(jobs log jobs).
///
/// Throws InputError, naming `source_name` and the key at fault, unless each (stage, micro-batch) has F once,
/// and either BW or both B and W once. Also throws for an unknown or repeated key, for "start" and "end" that
/// contradict the order and each other, and when the order cannot finish under the ordered discipline, naming
/// a job that can never start. Does not check memory limits: see `check`.
ImportedSchedule schedule_from_json(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph = StageGraph::chain);

}  // namespace starpipe::plan
