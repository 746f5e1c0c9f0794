// SPDX-License-Identifier: Apache-2.0
// A wave (Hanayo, arXiv 2308.15762): the stages go forth and back along the workers, `waves` times. With one
// wave it is a V. docs/write-a-schedule.md explains it.
#include <algorithm>
#include <vector>

#include <starpipe/plan/registry/plugin.hpp>
#include <starpipe/plan/schedules/orders.hpp>

using namespace starpipe::plan;

static int wave_worker(int stage, int workers) {
  const int position = stage % (2 * workers);
  return std::min(position, 2 * workers - 1 - position);
}

// F and B of one micro-batch. Each takes the first cell of its worker that is free after the pass it waits
// for. A cell is free if no other pass is there, of this micro-batch or of the next ones: the block repeats
// every `interval` cells. W is left out: it takes the cells that remain.
static BuildingBlock wave_block(int workers, int stages) {
  const int interval = 3 * (stages / workers);  // F, B and W of each stage of a worker
  BuildingBlock block{.workers = workers, .stages = stages, .interval = interval, .passes = {}};
  std::vector<std::vector<bool>> taken(workers, std::vector<bool>(interval));
  int cell = 0;
  const auto place = [&](int stage, Pass pass) {
    const int worker = wave_worker(stage, workers);
    while (taken[worker][cell % interval]) ++cell;
    taken[worker][cell % interval] = true;
    block.passes.push_back({{stage, 0, pass}, worker, cell});
    ++cell;
  };
  for (int s = 0; s < stages; ++s) place(s, Pass::F);
  for (int s = stages - 1; s >= 0; --s) place(s, Pass::B);
  return block;
}

static Schedule wave(const ScheduleRequest& request) {
  const int workers = request.workers;
  const int stages = 2 * request.options.at("waves") * workers;
  if (request.groups) throw starpipe::InputError("wave has no groups");
  if (!request.stage_workers.empty()) throw starpipe::InputError("wave places stages itself");
  if (*request.graph != StageGraph::chain(stages))
    throw starpipe::InputError("wave needs a chain of 2 x waves x workers stages");
  Grid grid(wave_block(workers, stages), request.microbatches);
  grid.reorder(Grid::Steady::kept);
  return in_order("wave", *request.graph, request.microbatches, grid.rows());
}

STARPIPE_PLUGIN(schedules) {
  schedules.push_back(
      {.name = "wave",
       .summary = "forth and back along the workers, several times",
       .source = "Hanayo, 2023, arXiv 2308.15762",
       .build = wave,
       .stages_per_worker = 2,
       .options = {{.name = "waves",
                    .meaning = "how often the stages go forth and back",
                    .default_value = 1,  // without --option, and where a configuration does not give it
                    .min = 1,
                    .max = 64}},
       .stages_with = [](const ScheduleOptions& options) { return 2 * options.at("waves"); }});
}
