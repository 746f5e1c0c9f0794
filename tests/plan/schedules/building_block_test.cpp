// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedules/orders.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"

namespace starpipe::plan {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 1F1B of Controllable Memory, fig. 1a: F one cell apart, BW two.
BuildingBlock one_forward_one_backward(int workers) {
  BuildingBlock block{.workers = workers, .stages = workers, .interval = 3, .passes = {}};
  for (int s = 0; s < workers; ++s) {
    block.passes.push_back({{s, 0, Pass::F}, s, s});
    block.passes.push_back({{s, 0, Pass::BW}, s, workers + 2 * (workers - 1 - s)});
  }
  return block;
}

// The same with a split backward pass; W is left out.
BuildingBlock split(int workers) {
  BuildingBlock block = one_forward_one_backward(workers);
  for (BlockPass& pass : block.passes) {
    if (pass.job.pass == Pass::BW) pass.job.pass = Pass::B;
  }
  return block;
}

std::string refusal(const BuildingBlock& block) {
  return message_of([&] { block.validate(); });
}

Schedule schedule(const BuildingBlock& block, const Grid& grid, int microbatches) {
  return in_order("block", StageGraph::chain(block.stages), microbatches, grid.rows());
}

TEST(BuildingBlock, PeakMemoryIsEquation1) {
  EXPECT_THAT(one_forward_one_backward(4).peak_memory(), ElementsAre(4, 3, 2, 1));
  // Two stages per worker add up; lifespans 12 and 2 at an interval of 6.
  const BuildingBlock v{.workers = 1,
                        .stages = 2,
                        .interval = 6,
                        .passes = {{{0, 0, Pass::F}, 0, 0},
                                   {{1, 0, Pass::F}, 0, 7},
                                   {{1, 0, Pass::B}, 0, 8},
                                   {{1, 0, Pass::W}, 0, 9},
                                   {{0, 0, Pass::B}, 0, 10},
                                   {{0, 0, Pass::W}, 0, 11}}};
  EXPECT_EQ(refusal(v), "");
  EXPECT_THAT(v.peak_memory(), ElementsAre(2 + 1));
}

TEST(BuildingBlock, NamesPassesThatCollide) {
  BuildingBlock block = one_forward_one_backward(4);
  EXPECT_EQ(refusal(block), "");
  block.interval = 2;
  EXPECT_THAT(refusal(block),
              AllOf(HasSubstr("F(0,0)"), HasSubstr("BW(0,0)"), HasSubstr("worker 0"), HasSubstr("2 cells")));
}

TEST(BuildingBlock, NamesPassesOutOfOrderOrMissing) {
  BuildingBlock block = one_forward_one_backward(2);
  block.passes[2].cell = 3;  // F of stage 1, after its BW in cell 2
  EXPECT_THAT(refusal(block), AllOf(HasSubstr("BW(1,0)"), HasSubstr("F(1,0)")));
  block = one_forward_one_backward(2);
  block.passes.erase(block.passes.begin());
  EXPECT_THAT(refusal(block), AllOf(HasSubstr("F(0,0)"), HasSubstr("missing")));
}

TEST(Grid, RepeatsAndSqueezesTo1F1B) {
  for (const int microbatches : {1, 3, 4, 9}) {
    const BuildingBlock block = one_forward_one_backward(4);
    Grid grid(block, microbatches);
    grid.squeeze();
    const Schedule made = schedule(block, grid, microbatches);
    ASSERT_TRUE(check(made).ok());
    EXPECT_DOUBLE_EQ(simulate(made).makespan, 3.0 * (microbatches + 4 - 1));
  }
}

TEST(Grid, JobsComeAfterWhatTheyWaitFor) {
  Grid grid(split(5), 7);
  for (const bool reordered : {false, true}) {
    if (reordered) grid.reorder(Grid::Steady::kept);
    const auto jobs = grid.jobs();
    ASSERT_EQ(jobs.size(), 3U * 5 * 7);
    const auto place = [&](Job job) { return std::ranges::find(jobs, job) - jobs.begin(); };
    for (const Job& job : jobs) {
      if (job.pass == Pass::F && job.stage > 0) {
        EXPECT_LT(place({job.stage - 1, job.microbatch, Pass::F}), place(job));
      }
      if (job.pass == Pass::B && job.stage < 4) {
        EXPECT_LT(place({job.stage + 1, job.microbatch, Pass::B}), place(job));
      }
      if (job.pass == Pass::W) {
        EXPECT_LT(place({job.stage, job.microbatch, Pass::B}), place(job));
      }
    }
  }
}

// Figure 11 of Controllable Memory: with a split backward pass, reordering leaves a third of 1F1B's bubbles
// at its memory.
TEST(Grid, ReorderingTakesNoMemoryAndNoMoreTime) {
  for (const int workers : {2, 3, 5, 8}) {
    for (const auto steady : {Grid::Steady::kept, Grid::Steady::moved}) {
      const int microbatches = 3 * workers;
      const BuildingBlock block = split(workers);
      Grid repeated(block, microbatches);
      Grid reordered = repeated;
      reordered.reorder(steady);
      EXPECT_LE(std::ranges::max(reordered.peak_memory()), std::ranges::max(repeated.peak_memory()));
      const double before = simulate(schedule(block, repeated, microbatches)).makespan;
      const double after = simulate(schedule(block, reordered, microbatches)).makespan;
      EXPECT_LE(after, before);
      EXPECT_LE(after, 3.0 * microbatches + 2 * (workers - 1)) << workers;
    }
  }
}

// Micro-batches of a block may be placed differently: two replicas of each stage.
TEST(Grid, PlacesReplicasByMicrobatch) {
  BuildingBlock block{.workers = 2, .stages = 2, .microbatches = 2, .interval = 12, .passes = {}};
  for (int b = 0; b < 2; ++b) {
    for (int s = 0; s < 2; ++s) {
      const int worker = b == 0 ? s : 1 - s;
      block.passes.push_back({{s, b, Pass::F}, worker, 6 * b + s});
      block.passes.push_back({{s, b, Pass::BW}, worker, 6 * b + 2 + 2 * (1 - s)});
    }
  }
  const Grid grid(block, 5);
  EXPECT_THAT(grid.peak_memory(), Each(1));
  const Schedule made = schedule(block, grid, 5);
  for (const JobId id : made.order()) {
    const Job job = made.job(id);
    EXPECT_EQ(made.compute(id), job.microbatch % 2 == 0 ? job.stage : 1 - job.stage);
  }
  EXPECT_THAT(weight_holders(made, 0), ElementsAre(0, 1));
}

}  // namespace
}  // namespace starpipe::plan
