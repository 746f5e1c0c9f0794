// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "starpipe/plan/formats/imported_schedule.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

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

}  // namespace starpipe::plan
