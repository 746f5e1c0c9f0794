// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// Returns the compute-only CSV of torch.distributed.pipelining: one row for each worker, one cell for each
/// job. A cell is stage, action and micro-batch; the action is F, I (starpipe's B), W or B (starpipe's BW):
/// 0F0, 1I2, 1W2, 0B3. Rows are in the order of the run and padded to one length. The format cannot say where
/// weights live. Throws InputError for R, O and L, for which it has no words.
std::string schedule_csv(const Schedule& schedule, const Timeline& timeline);

/// Returns the same without a run. Rows are in the order of n under the ordered discipline, else in the order
/// of a simulation with unit costs, which throws InputError when the schedule cannot finish.
std::string schedule_csv(const Schedule& schedule);

/// Reads PyTorch's CSV, compute-only (as `schedule_csv` writes it) or with communication. The schedule has
/// the ordered discipline, and weights are on the worker that computes. O(cells log cells).
///
/// Empty cells are idle time and have no effect. Rows may differ in length. A blank line between rows is a
/// worker without jobs; blank lines at the end of the file are ignored, as are blanks around cells, quotes,
/// CRLF and a byte order mark. An overlapped pair, (0F1;3B0)OVERLAP_F_B, becomes a pair
/// (Schedule::has_pairs).
///
/// With communication, 0SEND_F1 sends the activation of 0F1, and 1RECV_F1 receives it before 1F1; SEND_B and
/// RECV_B do the same for gradients. 0UNSHARD and 0RESHARD bracket the use of a stage's weights. 0REDUCE_GRAD
/// comes after the stage's last backward pass. In starpipe transfers follow from w, so these cells are
/// checked, as below, and then dropped. As in PyTorch's own simulation, a worker waits at a RECV until its
/// SEND was reached, and messages between two workers may overtake each other.
///
/// Throws InputError, naming `source_name`, row and cell (counted from 1) and the job, under the conditions
/// of `schedule_from_json` and for a cell that is not an action. With communication it also throws for:
///   - a job whose input was not received before it,
///   - a RECV without SEND or the reverse, a second one for the same datum, or one for a datum that stays on
///     its worker,
///   - a SEND before the job that makes the datum,
///   - a deadlock,
///   - a stage that is not unsharded when it computes, if its row unshards it at all,
///   - a gradient reduced twice or too early.
Schedule schedule_from_csv(std::string_view text, const std::string& source_name,
                           const GraphOfStages& graph = StageGraph::chain);

}  // namespace starpipe::plan
