// SPDX-License-Identifier: Apache-2.0
// Several chunks per worker in loops: stage s on worker s mod W.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "plan/schedules/read_request.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedules/orders.hpp"

namespace starpipe::plan {
namespace {

constexpr int default_chunks = 2;

// One forward pass of a worker. B takes the same steps with the chunks reversed.
struct Step {
  int chunk;
  int microbatch;
};

// Returns the steps of a worker: micro-batches in groups, each group through all chunks before the next. The
// last group is filled up with micro-batches that do not exist; `Loops` leaves them out. If an order can
// finish with these jobs, it can finish without them.
std::vector<Step> grouped(int microbatches, int group, int chunks) {
  std::vector<Step> steps;
  for (int first = 0; first < microbatches; first += group) {
    for (int c = 0; c < chunks; ++c) {
      for (int b = first; b < first + group; ++b) steps.push_back({c, b});
    }
  }
  return steps;
}

// The jobs of each worker in order, without micro-batches that do not exist.
class Loops {
 public:
  Loops(const char* name, const ScheduleRequest& request, int group)
      : name_(name),
        request_(request),
        chunks_(requested_chunks(name, request)),
        steps_(grouped(request.microbatches, group, chunks_)),
        rows_(index(request.workers)) {}

  [[nodiscard]] int chunks() const { return chunks_; }
  [[nodiscard]] int steps() const { return static_cast<int>(steps_.size()); }

  void forward(int worker, int step) { add(worker, at(step).chunk, at(step).microbatch, Pass::F); }
  void backward(int worker, int step, Pass pass) {
    add(worker, chunks_ - 1 - at(step).chunk, at(step).microbatch, pass);
  }
  // The backward pass of the job that `forward` added for this step.
  void mirror(int worker, int step) { add(worker, at(step).chunk, at(step).microbatch, Pass::BW); }
  [[nodiscard]] Schedule schedule() const {
    return in_order(name_, request_.graph.value(), request_.microbatches, rows_);
  }

 private:
  [[nodiscard]] const Step& at(int step) const { return steps_[index(step)]; }
  void add(int worker, int chunk, int microbatch, Pass pass) {
    if (microbatch >= request_.microbatches) return;
    rows_[index(worker)].push_back({chunk * request_.workers + worker, microbatch, pass});
  }

  const char* name_;
  const ScheduleRequest& request_;
  int chunks_;
  std::vector<Step> steps_;
  std::vector<std::vector<Job>> rows_;
};

// Returns the number of micro-batches in a round, which go through all loops together: as many rounds of at
// least W micro-batches as possible, all of one size except the last.
int round_size(const ScheduleRequest& request) {
  const int rounds = std::max(1, request.microbatches / request.workers);
  return ceil_div(request.microbatches, rounds);
}

struct Alternation {
  int group;   // number of micro-batches that go through all loops before the next group
  int ahead;   // number of forward passes by which a worker starts earlier than the next worker
  int spread;  // with a split backward pass, worker w runs each W `spread` * w passes after its B; else 0
  bool split;  // whether the backward pass is split into B and W
};

// On each worker some forward passes, then forward and backward passes in turn, then the remaining backward
// passes.
Schedule alternating(const char* name, const ScheduleRequest& request, const Alternation& by) {
  Loops loops(name, request, by.group);
  for (int w = 0; w < request.workers; ++w) {
    const int warm_up = by.ahead * (request.workers - 1 - w) + (loops.chunks() - 1) * by.group;
    const int lag = by.spread * w;
    for (int i = -warm_up; i < loops.steps() + lag; ++i) {
      if (i + warm_up < loops.steps()) loops.forward(w, i + warm_up);
      if (i >= 0 && i < loops.steps()) loops.backward(w, i, by.split ? Pass::B : Pass::BW);
      if (by.split && i >= lag) loops.backward(w, i - lag, Pass::W);
    }
  }
  return loops.schedule();
}

// With `ahead` 2, a worker computes one pass while the transfer for the other is on its way.
const bool registered_interleaved = register_schedule(
    {.name = "interleaved-1f1b",
     .summary = "1F1B with several chunks per worker, micro-batches in rounds of W through all loops",
     .source = "Megatron-LM, 2021, arXiv 2104.04473",
     .build =
         [](const ScheduleRequest& request) {
           return alternating("interleaved-1f1b", request,
                              {.group = round_size(request), .ahead = 2, .spread = 0, .split = false});
         },
     .stages_per_worker = default_chunks,
     .alias = "Interleaved1F1B"});

// Groups of W slices go through all loops. The backward passes of a sequence take the reverse order of its F,
// so the first worker holds the K slices of all its chunks and 2 (W - 1) more.
Schedule slimpipe(const ScheduleRequest& request) {
  const int workers = request.workers;
  const int slices = request.slices;
  constexpr int ahead = 2;
  if (slices == 1)
    return alternating("slimpipe", request,
                       {.group = round_size(request), .ahead = ahead, .spread = 0, .split = false});
  if (slices % workers != 0)
    throw RequestError(
        fmt::format("slices: slimpipe needs a multiple of the {} workers, not {}", workers, slices));
  ScheduleRequest of_slices = request;
  of_slices.microbatches *= slices;
  Loops loops("slimpipe", of_slices, workers);
  const int of_sequence = slices * loops.chunks();
  for (int w = 0; w < workers; ++w) {
    const int warm_up = of_sequence - 1 + ahead * (workers - 1 - w);
    for (int i = -warm_up; i < loops.steps(); ++i) {
      if (i + warm_up < loops.steps()) loops.forward(w, i + warm_up);
      if (i >= 0) loops.mirror(w, i / of_sequence * of_sequence + of_sequence - 1 - i % of_sequence);
    }
  }
  const Schedule made = loops.schedule();
  ScheduleSpec spec = made.spec();
  spec.slices = slices;
  return Schedule(spec);
}

const bool registered_slimpipe = register_schedule(
    {.name = "slimpipe",
     .summary = "interleaved 1F1B of slices: groups of W slices through all loops, back in reverse",
     .source = "SlimPipe, 2025, arXiv 2504.14519",
     .build = slimpipe,
     .stages_per_worker = default_chunks,
     .makes_slices = true});

// Groups of W / 2 leave no idle time between loops. The backward pass is split, so that W delays no other
// worker's B.
const bool registered_grouped = register_schedule(
    {.name = "grouped-interleaved",
     .summary = "interleaved in groups of W / 2 micro-batches: three quarters of 1F1B's memory",
     .source = "sail-sg/zero-bubble-pipeline-parallelism, grouped interleaved 1F1B",
     .build =
         [](const ScheduleRequest& request) {
           return alternating("grouped-interleaved", request,
                              {.group = (request.workers + 1) / 2, .ahead = 1, .spread = 0, .split = true});
         },
     .stages_per_worker = default_chunks});

// ZB-H1 in loops: worker w leaves w passes of W for the end, where it would be idle.
const bool registered_interleaved_zb = register_schedule(
    {.name = "interleaved-zb",
     .summary = "ZB-H1 with several chunks per worker: one pass ahead, W later on later workers",
     .source =
         "PyTorch, ScheduleInterleavedZeroBubble; Zero Bubble Pipeline Parallelism, 2024, arXiv 2401.10241, "
         "section 2.1",
     .build =
         [](const ScheduleRequest& request) {
           return alternating("interleaved-zb", request,
                              {.group = round_size(request), .ahead = 1, .spread = 1, .split = true});
         },
     .stages_per_worker = default_chunks,
     .alias = "InterleavedZeroBubble"});

// Returns a block of one micro-batch. Its passes follow each other from worker to worker. F enters its next
// loop `spacing` micro-batches later; BW enters its next loop when W micro-batches have left the loop before,
// as in the grouped order.
BuildingBlock uniform_block(int workers, int chunks, int spacing) {
  constexpr int cells = 3;  // F and BW of one stage
  BuildingBlock block{
      .workers = workers, .stages = workers * chunks, .interval = cells * chunks, .passes = {}};
  const auto distance_of = [chunks](int passes) {
    while (std::gcd(passes, chunks) != 1) ++passes;  // no two loops in the same cells
    return cells * passes;
  };
  const int forward = distance_of(spacing);
  const int backward = distance_of(2 * workers - 1);
  const int loss = (chunks - 1) * forward + workers;
  for (int c = 0; c < chunks; ++c) {
    for (int w = 0; w < workers; ++w) {
      const int stage = c * workers + w;
      block.passes.push_back({{stage, 0, Pass::F}, w, c * forward + w});
      block.passes.push_back(
          {{stage, 0, Pass::BW}, w, loss + 2 * (workers - 1 - w) + (chunks - 1 - c) * backward});
    }
  }
  return block;
}

// A worker may hold at least `peak` stashes, more if the block needs more.
Schedule uniform(const char* name, const ScheduleRequest& request, int spacing, int peak) {
  const int chunks = requested_chunks(name, request);
  const BuildingBlock block = uniform_block(request.workers, chunks, spacing);
  Grid grid(block, request.microbatches);
  grid.reorder(Grid::Steady::moved, std::max(peak, std::ranges::max(block.peak_memory())));
  return in_order(name, request.graph.value(), request.microbatches, grid.rows());
}

// With the memory of the grouped order.
const bool registered_uniform =
    register_schedule({.name = "interleaved-uniform",
                       .summary = "interleaved 1F1B, its building block repeated with one interval",
                       .source = "Pipeline Parallelism with Controllable Memory, 2024, appendix G, fig. 15b",
                       .build =
                           [](const ScheduleRequest& request) {
                             const int chunks = requested_chunks("interleaved-uniform", request);
                             return uniform("interleaved-uniform", request, request.workers,
                                            (chunks + 1) * request.workers - 1);
                           },
                       .stages_per_worker = default_chunks});

// The loops of F follow each other more closely, with the memory that the block then needs.
const bool registered_interleaved_low_memory = register_schedule(
    {.name = "interleaved-low-memory",
     .summary = "interleaved 1F1B with the loops of F closer to each other",
     .source = "Pipeline Parallelism with Controllable Memory, 2024, appendix H, fig. 16c",
     .build =
         [](const ScheduleRequest& request) {
           return uniform("interleaved-low-memory", request, (2 * request.workers + 2) / 3, 0);
         },
     .stages_per_worker = default_chunks});

// Returns a schedule of all forward passes, then all backward passes in reverse.
Schedule mirrored(const char* name, const ScheduleRequest& request, int group) {
  Loops loops(name, request, group);
  for (int w = 0; w < request.workers; ++w) {
    for (int i = 0; i < loops.steps(); ++i) loops.forward(w, i);
    for (int i = loops.steps() - 1; i >= 0; --i) loops.mirror(w, i);
  }
  return loops.schedule();
}

const bool registered_bfs = register_schedule(
    {.name = "looped-bfs",
     .summary = "GPipe in loops, all micro-batches through one loop before the next",
     .source = "Breadth-First Pipeline Parallelism, 2022, arXiv 2211.05953",
     .build =
         [](const ScheduleRequest& request) { return mirrored("looped-bfs", request, request.microbatches); },
     .stages_per_worker = default_chunks,
     .alias = "LoopedBFS"});

const bool registered_dfs = register_schedule(
    {.name = "looped-dfs",
     .summary = "GPipe in loops, W micro-batches through all loops before the next",
     .source = "Breadth-First Pipeline Parallelism, 2022, arXiv 2211.05953",
     .build = [](const ScheduleRequest& request) { return mirrored("looped-dfs", request, request.workers); },
     .stages_per_worker = default_chunks});

}  // namespace
}  // namespace starpipe::plan
