// SPDX-License-Identifier: Apache-2.0
// Several chunks a worker in loops: stage s on worker s mod W.
#include "common.hpp"

#include <algorithm>
#include <numeric>

#include "starpipe/plan/building_block.hpp"

namespace starpipe::plan {
namespace {

constexpr int default_chunks = 2;

using Rows = std::vector<std::vector<Job>>;

// Micro-batches in groups, each through all loops before the next: what F runs, and B with the loops
// reversed.
struct Step {
  int chunk;
  int microbatch;
};

std::vector<Step> grouped(int microbatches, int group, int chunks) {
  std::vector<Step> steps;
  for (int first = 0; first < microbatches; first += group) {
    for (int c = 0; c < chunks; ++c) {
      for (int b = first; b < std::min(first + group, microbatches); ++b) steps.push_back({c, b});
    }
  }
  return steps;
}

// `warm_up` forward passes, then one forward and one backward, then the backward passes that are left.
std::vector<Job> alternating(const std::vector<Step>& steps, int worker, int workers, int chunks, int warm_up,
                             bool split) {
  std::vector<Job> row;
  const auto forward = [&](const Step& step) {
    row.push_back({step.chunk * workers + worker, step.microbatch, Pass::F});
  };
  const auto count = static_cast<int>(steps.size());
  warm_up = std::min(warm_up, count);
  for (int i = 0; i < warm_up; ++i) forward(steps[static_cast<std::size_t>(i)]);
  for (int i = 0; i < count; ++i) {
    if (i + warm_up < count) forward(steps[static_cast<std::size_t>(i + warm_up)]);
    const Step& step = steps[static_cast<std::size_t>(i)];
    const int stage = (chunks - 1 - step.chunk) * workers + worker;
    row.push_back({stage, step.microbatch, split ? Pass::B : Pass::BW});
    if (split) row.push_back({stage, step.microbatch, Pass::W});
  }
  return row;
}

// Megatron-LM's: groups of W, and as many passes in flight as hide the transfers of an F and a B.
Schedule interleaved(const ScheduleRequest& request) {
  const int chunks = requested_chunks("interleaved-1f1b", request);
  const int workers = request.workers;
  const auto steps = grouped(request.microbatches, workers, chunks);
  Rows rows;
  for (int w = 0; w < workers; ++w) {
    const int warm_up = 2 * (workers - 1 - w) + (chunks - 1) * workers;
    rows.push_back(alternating(steps, w, workers, chunks, warm_up, false));
  }
  return in_order("interleaved-1f1b", requested_graph(request), request.microbatches, rows);
}

const bool registered = register_schedule(
    {"interleaved-1f1b", "1F1B with several chunks a worker, micro-batches in groups of W through all loops",
     "Megatron-LM, arXiv 2104.04473", interleaved, default_chunks, "Interleaved1F1B"});

// Groups of W / 2 need no more passes in flight than the loops, with W after its B.
Schedule grouped_interleaved(const ScheduleRequest& request) {
  const int chunks = requested_chunks("grouped-interleaved", request);
  const int workers = request.workers;
  const int group = (workers + 1) / 2;
  const auto steps = grouped(request.microbatches, group, chunks);
  Rows rows;
  for (int w = 0; w < workers; ++w) {
    rows.push_back(
        alternating(steps, w, workers, chunks, workers - 1 - w + (chunks - 1) * group, true));
  }
  return in_order("grouped-interleaved", requested_graph(request), request.microbatches, rows);
}

const bool registered_grouped = register_schedule(
    {"grouped-interleaved", "interleaved in groups of W / 2 micro-batches: three quarters of 1F1B's memory",
     "sail-sg/zero-bubble-pipeline-parallelism, grouped interleaved 1F1B", grouped_interleaved,
     default_chunks});

// One micro-batch a block, each loop `spacing` passes after the one before.
BuildingBlock uniform_block(int workers, int chunks, int spacing) {
  constexpr int cells = 3;  // F and BW of one stage
  BuildingBlock block{
      .workers = workers, .stages = workers * chunks, .interval = cells * chunks, .passes = {}};
  while (std::gcd(spacing, chunks) != 1) ++spacing;  // no two loops in the same cells
  const int loop = cells * spacing;
  for (int c = 0; c < chunks; ++c) {
    for (int w = 0; w < workers; ++w) {
      const int backward = (chunks - 1) * loop + w + 1 + cells * (workers - 1 - w);
      block.passes.push_back({{c * workers + w, 0, Pass::F}, w, c * loop + w});
      block.passes.push_back(
          {{c * workers + w, 0, Pass::BW}, w, backward + (chunks - 1 - c) * loop});
    }
  }
  return block;
}

Schedule uniform(const char* name, const ScheduleRequest& request, int spacing) {
  const int chunks = requested_chunks(name, request);
  Grid grid(uniform_block(request.workers, chunks, spacing), request.microbatches);
  grid.reorder();
  return in_order(name, requested_graph(request), request.microbatches, grid.rows());
}

const bool registered_uniform = register_schedule(
    {"interleaved-uniform", "interleaved 1F1B, its building block repeated with one interval",
     "004, appendix G, fig. 15b",
     [](const ScheduleRequest& request) { return uniform("interleaved-uniform", request, request.workers); },
     default_chunks});

// The loops follow each other as closely as the backward passes can, which take two cells a worker.
const bool registered_low_memory = register_schedule(
    {"interleaved-low-memory", "interleaved 1F1B with its loops as close as they can be",
     "004, appendix H, fig. 16c",
     [](const ScheduleRequest& request) {
       return uniform("interleaved-low-memory", request, (2 * request.workers + 2) / 3);
     },
     default_chunks});

// All forward passes, then all backward passes in reverse.
Schedule mirrored(const char* name, const ScheduleRequest& request, int group) {
  const int chunks = requested_chunks(name, request);
  const auto steps = grouped(request.microbatches, group, chunks);
  Rows rows(static_cast<std::size_t>(request.workers));
  for (int w = 0; w < request.workers; ++w) {
    auto& row = rows[static_cast<std::size_t>(w)];
    const auto add = [&](const Step& step, Pass pass) {
      row.push_back({step.chunk * request.workers + w, step.microbatch, pass});
    };
    std::ranges::for_each(steps, [&](const Step& step) { add(step, Pass::F); });
    std::for_each(steps.rbegin(), steps.rend(), [&](const Step& step) { add(step, Pass::BW); });
  }
  return in_order(name, requested_graph(request), request.microbatches, rows);
}

const bool registered_bfs = register_schedule(
    {"looped-bfs", "GPipe in loops, all micro-batches through one loop before the next",
     "Breadth-First Pipeline Parallelism, arXiv 2211.05953",
     [](const ScheduleRequest& request) { return mirrored("looped-bfs", request, request.microbatches); },
     default_chunks, "LoopedBFS"});

const bool registered_dfs = register_schedule(
    {"looped-dfs", "GPipe in loops, W micro-batches through all loops before the next",
     "Breadth-First Pipeline Parallelism, arXiv 2211.05953",
     [](const ScheduleRequest& request) { return mirrored("looped-dfs", request, request.workers); },
     default_chunks});

}  // namespace
}  // namespace starpipe::plan
