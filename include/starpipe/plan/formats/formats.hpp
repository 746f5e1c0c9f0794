// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// A schedule read from a file, and the costs the file states (unit costs where it states none).
struct ImportedSchedule {
  Schedule schedule;
  Costs costs;
};

/// The graph of so many stages, where a file does not tell; throws InputError for a number that cannot be.
using GraphOfStages = std::function<StageGraph(int stages)>;

/// A schedule and one run of it as one JSON object, the form of `schedule show --format json`.
///
/// Times are in the unit of the durations, memory in stage activations; arrays are indexed by worker;
/// "ops" holds one array a worker, by start. "durations" is an object when all stages cost the same, an
/// array with one object a stage otherwise. "stage_graph" (edges), "recompute", "memory_limits",
/// "comm_per_byte", "prefetch", "sizes", "peak_activation_bytes" and "received_bytes" appear only where they
/// differ from the default: a chain, false, none, 0, true, all zero. `schedule_from_json` reads it back.
/// Callers that look inside the result include <nlohmann/json.hpp>.
nlohmann::ordered_json schedule_json(const Schedule& schedule, const Costs& costs, const Timeline& timeline);

/// Any JSON value as text that people can read too: what fits in 100 columns stays on one line, so each
/// op of a schedule is one line. Ends in a newline.
std::string json_text(const nlohmann::ordered_json& value);

/// Reads a schedule from JSON, ours or anyone's.
///
/// Only "ops" is required: one array a worker of {"op", "stage", "microbatch"}, with "weights_from" where
/// the weights come from another worker. "stages", "microbatches", "workers" follow from it and are
/// checked where given. A row runs in the order of "start" when all of its ops have one, else as listed.
/// What a file fixes is an order, so the result has the ordered discipline, whatever made the file; n is
/// the position in the row. Keys it does not know are ignored. O(jobs log jobs).
///
/// Throws InputError, naming `source_name` and the key at fault, unless each (stage, micro-batch) has F
/// once and either BW or both B and W once, and naming a job that can never start when the order cannot
/// finish. Whether memory limits hold is left to `check`.
ImportedSchedule schedule_from_json(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph = StageGraph::chain);

/// The compute-only CSV of torch.distributed.pipelining: one row a worker, one cell a job, as stage,
/// action, micro-batch, the action being F, I (our B), W or B (our BW): 0F0, 1I2, 1W2, 0B3. Rows are in
/// the order of the run and padded to one length. Where weights live cannot be told in this form.
std::string schedule_csv(const Schedule& schedule, const Timeline& timeline);

/// The same in the order of n; of a run with unit costs where the discipline leaves the order open
/// (which throws InputError when the schedule cannot finish).
std::string schedule_csv(const Schedule& schedule);

/// Reads PyTorch's CSV, compute-only (what `schedule_csv` writes) or with communication: the ordered
/// discipline, weights on the worker that computes. O(cells log cells).
///
/// Empty cells are idle time and carry no meaning; rows may differ in length; a blank line between rows is a
/// worker without jobs, at the end of the file it is nothing. Blanks around cells, quotes, CRLF and a byte
/// order mark are ignored. An overlapped pair, (0F1;3B0)OVERLAP_F_B, becomes its two jobs, one after the
/// other: their time is the sum, whatever PyTorch gains by running them together.
///
/// With communication, 0SEND_F1 sends the activation of 0F1, 1RECV_F1 is there before 1F1, SEND_B and RECV_B
/// likewise; 0UNSHARD and 0RESHARD bracket the use of a stage's weights, 0REDUCE_GRAD comes after its last
/// backward pass. Transfers follow from w here, so these cells are proved right, as below, and then dropped.
/// A worker waits at a RECV until its SEND was reached, as in PyTorch's own simulation; messages between two
/// workers may overtake each other.
///
/// Throws InputError, naming `source_name`, row and cell (counted from 1) and the job: under the conditions
/// of `schedule_from_json`; for a cell that is no action; with communication, for a job that needs what was
/// not received before, a RECV without SEND or the reverse, a SEND of what is not there yet, either of them
/// twice or where nothing changes workers, a deadlock, a stage that is not unsharded when it computes (if its
/// row unshards it at all), and a gradient reduced twice or too early.
Schedule schedule_from_csv(std::string_view text, const std::string& source_name,
                           const GraphOfStages& graph = StageGraph::chain);

/// Either of them, as the name's extension says; else JSON is what starts with a brace.
ImportedSchedule schedule_from_text(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph = StageGraph::chain);

struct TextOptions {
  bool colour = false;  ///< ANSI colours, one a micro-batch
  int columns = 100;    ///< of the terminal
};

/// For people: "512 B", "1.5 MiB".
std::string bytes_text(std::uint64_t bytes);

/// A drawing for the terminal, one row a worker with time to the right, and below it a table of makespan,
/// bubble fractions, peak activations and what each worker receives. A drawing wider than the terminal is
/// left out, with a line that says so. Ends in a newline.
std::string schedule_text(const Schedule& schedule, const Timeline& timeline,
                          const TextOptions& options = {});

/// A run to trace. Refers to the schedule and timeline, which must outlive the call.
struct TracedRun {
  std::string name;  ///< "predicted", "measured", ...
  const Schedule* schedule = nullptr;
  const Timeline* timeline = nullptr;
};

/// Runs as a Chrome trace, for ui.perfetto.dev: a process a run, a thread a worker, an event a job, and a
/// counter of live activations a worker. Each run starts at time 0.
/// `microseconds_per_unit` converts the timelines' unit: 1e6 when they are in seconds.
nlohmann::ordered_json trace_json(std::span<const TracedRun> runs, double microseconds_per_unit = 1e6);

}  // namespace starpipe::plan
