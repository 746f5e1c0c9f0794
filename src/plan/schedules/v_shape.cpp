// SPDX-License-Identifier: Apache-2.0
// Controllable Memory: two chunks per worker. The second half of the stages goes back along the workers, so
// that each worker has a stage whose stashes live long and a stage whose stashes live shortly.
#include "plan/schedules/read_request.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedules/orders.hpp"

namespace starpipe::plan {
namespace {

constexpr int chunks = 2;
constexpr int interval = 6;  // F, B and W of two stages

int v_worker(int stage, int workers) { return stage < workers ? stage : 2 * workers - 1 - stage; }

// Cells between consecutive passes of a micro-batch (Controllable Memory, section 3.1 and appendix F). On the
// way away from worker 0, in the first half of F and the first half of B, it is delta 0; on the way back it
// is delta 1; the three turns have their own distances.
struct Offsets {
  int away;
  int back;
  int turn_forward;   // between F of the last worker's two stages
  int turn_loss;      // from F to B of the last stage, on worker 0
  int turn_backward;  // between B of the last worker's two stages
};

BuildingBlock v_block(int workers, const Offsets& by) {
  BuildingBlock block{.workers = workers, .stages = 2 * workers, .interval = interval, .passes = {}};
  const int way = (workers - 1) * by.away;  // cells from worker 0 to the last worker
  const auto add = [&](Pass pass, int start, int turn, auto&& stage_of) {
    for (int s = 0; s < 2 * workers; ++s) {
      const int worker = v_worker(s, workers);
      const int cell = s < workers ? worker * by.away : way + turn + (workers - 1 - worker) * by.back;
      block.passes.push_back({{stage_of(s), 0, pass}, worker, start + cell});
    }
    return start + way + turn + (workers - 1) * by.back;
  };
  const int loss = add(Pass::F, 0, by.turn_forward, [](int s) { return s; });
  add(Pass::B, loss + by.turn_loss, by.turn_backward, [&](int s) { return 2 * workers - 1 - s; });
  return block;
}

// Returns the schedule in an order for passes of one length: V-Min and V-Half do not depend on durations.
Schedule reordered(const char* name, const ScheduleRequest& request, const Offsets& offsets) {
  const StageGraph graph = requested_chain(name, request, chunks);
  Grid grid(v_block(request.workers, offsets), request.microbatches);
  grid.reorder(Grid::Steady::kept);
  return in_order(name, graph, request.microbatches, grid.rows());
}

const bool registered_min = register_schedule(
    {.name = "v-min",
     .summary = "V shape with the smallest memory: about a third of 1F1B's",
     .source = "Pipeline Parallelism with Controllable Memory, 2024, section 3.2 and appendix F",
     .build =
         [](const ScheduleRequest& request) {
           return reordered("v-min", request, {1, 1, 1, request.workers % 3 == 0 ? 3 : 1, 1});
         },
     .stages_per_worker = chunks});

const bool registered_half = register_schedule(
    {.name = "v-half",
     .summary = "V shape with about half of 1F1B's memory and bubbles",
     .source = "Pipeline Parallelism with Controllable Memory, 2024, section 3.2 and appendix F",
     .build =
         [](const ScheduleRequest& request) {
           return reordered("v-half", request, {2, 1, 1, request.workers % 2 == 0 ? 4 : 1, 2});
         },
     .stages_per_worker = chunks});

// F and B in the order of the reordered block; W where the durations leave room.
Schedule v_zb(const ScheduleRequest& request) {
  const StageGraph graph = requested_chain("v-zb", request, chunks);
  Grid grid(v_block(request.workers, {4, 2, 2, 1, 4}), request.microbatches);
  grid.reorder(Grid::Steady::moved);
  const auto worker = [&](int stage, int) { return v_worker(stage, request.workers); };
  return in_order("v-zb", graph, request.microbatches,
                  with_weight_gradients(grid.jobs(), graph, request.workers, request.microbatches, worker,
                                        2 * request.workers, requested_costs(request)));
}

const bool registered_v_zb = register_schedule(
    {.name = "v-zb",
     .summary = "V shape with 1F1B's memory and almost no bubbles; made for the durations",
     .source = "Pipeline Parallelism with Controllable Memory, 2024, section 3.2; Zero Bubble "
               "Pipeline Parallelism, 2024, arXiv 2401.10241, ZB-V",
     .build = v_zb,
     .stages_per_worker = chunks,
     .alias = "ZBVZeroBubble"});

// Returns the block of 1F1B's passes along the V. Each BW takes the first two free cells after its inputs are
// there. A cell is free if no pass of another micro-batch, an interval earlier or later, is there.
BuildingBlock fused_block(int workers) {
  BuildingBlock block{.workers = workers, .stages = 2 * workers, .interval = interval, .passes = {}};
  std::vector<std::vector<bool>> taken(index(workers), std::vector<bool>(interval));
  int cell = 0;
  for (int s = 0; s < 2 * workers; ++s, ++cell) {
    const int worker = v_worker(s, workers);
    taken[index(worker)][index(cell % interval)] = true;
    block.passes.push_back({{s, 0, Pass::F}, worker, cell});
  }
  for (int s = 2 * workers - 1; s >= 0; --s, cell += 2) {
    const int worker = v_worker(s, workers);
    auto& row = taken[index(worker)];
    const auto at = [&row](int c) { return row[index(c % interval)]; };
    while (at(cell) || at(cell + 1)) ++cell;
    at(cell) = at(cell + 1) = true;
    block.passes.push_back({{s, 0, Pass::BW}, worker, cell});
  }
  return block;
}

Schedule one_forward_one_backward_v(const ScheduleRequest& request) {
  const StageGraph graph = requested_chain("1f1b-v", request, chunks);
  Grid grid(fused_block(request.workers), request.microbatches);
  grid.reorder(Grid::Steady::moved);
  return in_order("1f1b-v", graph, request.microbatches, grid.rows());
}

const bool registered_1f1b_v = register_schedule(
    {.name = "1f1b-v",
     .summary = "V shape of 1F1B: two thirds of its memory without splitting the backward pass",
     .source = "Pipeline Parallelism with Controllable Memory, 2024, appendix H, fig. 16a",
     .build = one_forward_one_backward_v,
     .stages_per_worker = chunks});

}  // namespace
}  // namespace starpipe::plan
