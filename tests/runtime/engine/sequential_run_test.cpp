// SPDX-License-Identifier: Apache-2.0
// The tasks of a step, run sequentially with the kernels of the engine, train the network.

#include "runtime/sequential_run.hpp"

#include <cblas.h>
#include <gtest/gtest.h>

#include "model/reference.hpp"
#include "runtime/engine/graph_cases.hpp"
#include "starpipe/base/index.hpp"
#include "support/datasets.hpp"
#include "support/floats.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Schedule;

// The tasks in their order, with the kernels of the engine, train as the reference does. Every other case
// clips, changes its rate, and decays matrices only.
TEST(TaskGraph, TasksInOrderTrain) {
  openblas_set_num_threads(1);
  const model::OptimizerConfig recipe = {.kind = "sgd",
                                         .learning_rate = 0.1,
                                         .weight_decay = 0.01,
                                         .momentum = 0.9,
                                         .decay = "matrices",
                                         .schedule = {"cosine", 1, 0.01, 4},
                                         .clip = 1e-2};
  int cases = 0;
  for_each_case([&](const GraphCase& c) {
    const model::OptimizerConfig& optimizer = cases++ % 2 == 0 ? sgd : recipe;
    std::unique_ptr<model::Dataset> data = std::make_unique<Noise>();
    if (c.network.config.kind != "dag") data = data_for(c.network);
    constexpr int steps = 2;
    SequentialRun run(c.schedule, c.network, optimizer, start_values(c.network));
    const auto reference = model::train_reference(c.network, *data, optimizer, start_values(c.network),
                                                  c.schedule.whole_microbatches(), steps);
    for (int step = 0; step < steps; ++step) {
      const Floats losses = run.step(step, *data);
      double mean = 0;
      for (const float loss : losses) mean += static_cast<double>(loss) / static_cast<double>(losses.size());
      const double expected = reference.losses[index(step)];
      EXPECT_NEAR(mean, expected, 1e-5 * expected);
      EXPECT_NEAR(run.gradient_norm(), reference.norms[index(step)], 1e-5 * reference.norms[index(step)]);
      EXPECT_GT(run.gradient_norm(), 1e-2) << "the clip binds";
    }
    expect_close(run.gradients(), reference.gradients, 1e-5, "gradient");
    expect_close(run.parameters(), reference.parameters, 1e-5, "parameters");
    run.expect_equal_replicas();
  });
}

// The same kernels run on the same inputs; only the writer of the stash differs.
TEST(TaskGraph, RecomputationChangesNoBit) {
  openblas_set_num_threads(1);
  for_each_case([](const GraphCase& c) {
    if (!c.schedule.recomputes()) return;
    const Schedule plain(plan::ScheduleSpec{
        .name = "plain",
        .graph = c.schedule.graph(),
        .microbatches = c.schedule.microbatches(),
        .workers = c.schedule.workers(),
        .split_backward = [&](int s, int b) { return c.schedule.split_backward(s, b); },
        .placement = [&](const plan::Job& job) { return c.schedule.placement(*c.schedule.find(job)); },
        .priority =
            [&](const plan::Job& job) { return std::int64_t{c.schedule.turn(*c.schedule.find(job))}; },
        .discipline = c.schedule.discipline()});
    std::unique_ptr<model::Dataset> data = std::make_unique<Noise>();
    if (c.network.config.kind != "dag") data = data_for(c.network);
    SequentialRun with(c.schedule, c.network, sgd, start_values(c.network));
    SequentialRun without(plain, c.network, sgd, start_values(c.network));
    for (int step = 0; step < 2; ++step) EXPECT_EQ(with.step(step, *data), without.step(step, *data));
    EXPECT_TRUE(with.gradients() == without.gradients());
    EXPECT_TRUE(with.parameters() == without.parameters());
  });
}

}  // namespace
}  // namespace starpipe::runtime
