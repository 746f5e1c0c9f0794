// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/formats/json_value.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedules/finer.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

Costs costs_of_stages() {
  Costs costs;
  costs.durations = {{.F = 4, .B = 8, .W = 2}};
  costs.sizes = {{.activation = 100, .gradient = 100, .stash = 10, .weights = 9}};
  return costs;
}

TEST(TensorFold, LastsOneTthOfTheSchedule) {
  for (const char* name : {"1f1b", "zb-h1", "v-half", "interleaved-1f1b", "gpipe"}) {
    SCOPED_TRACE(name);
    const Schedule whole = named(name, 2, 4);
    const double makespan = simulate(whole, costs_of_stages()).makespan;
    for (const int shards : {2, 4}) {
      const TensorFold fold =
          tensor_fold(whole, costs_of_stages(), {.shards = shards, .workers_each = shards});
      EXPECT_EQ(fold.schedule.workers(), 2 * shards);
      EXPECT_EQ(fold.schedule.stages(), whole.stages() * shards + 1);
      EXPECT_TRUE(check(fold.schedule).ok());
      EXPECT_DOUBLE_EQ(simulate(fold.schedule, fold.costs).makespan, makespan / shards);
      const TensorFold in_turn = tensor_fold(whole, costs_of_stages(), {.shards = shards, .workers_each = 1});
      EXPECT_EQ(in_turn.schedule.workers(), 2);
      EXPECT_DOUBLE_EQ(simulate(in_turn.schedule, in_turn.costs).makespan, makespan);
    }
  }
}

TEST(TensorFold, OfOneShardIsTheSchedule) {
  const Schedule whole = named("1f1b", 2, 4);
  EXPECT_EQ(tensor_fold(whole, costs_of_stages(), {}).schedule, whole);
}

TEST(TensorFold, DividesStashesAndWeights) {
  const TensorFold fold =
      tensor_fold(named("1f1b", 2, 4), costs_of_stages(), {.shards = 4, .workers_each = 4});
  const StageSizes& first = fold.costs.size(0);
  EXPECT_EQ(first.activation, 100U);
  EXPECT_EQ(first.stash, 3U);
  EXPECT_EQ(first.weights, 3U);
  EXPECT_FALSE(first.adds_inputs);
  EXPECT_TRUE(fold.costs.size(4).adds_inputs);
  EXPECT_FALSE(fold.costs.size(8).has_weights);
  EXPECT_EQ(fold.costs.duration(8), (Durations{.F = 0, .B = 0, .W = 0}));
}

TEST(TensorFold, IsReadBackFromItsFiles) {
  const TensorFold fold =
      tensor_fold(named("zb-h1", 2, 4), costs_of_stages(), {.shards = 2, .workers_each = 2});
  const Timeline timeline = simulate(fold.schedule, fold.costs);
  const std::string json = json_text(schedule_json(fold.schedule, fold.costs, timeline, ""));
  const ImportedSchedule read = schedule_from_text(json, "fold.json");
  EXPECT_EQ(read.schedule.graph(), fold.schedule.graph());
  EXPECT_EQ(simulate(read.schedule, read.costs).order, timeline.order);
  EXPECT_EQ(read.schedule.graph().shards(), fold.schedule.graph().shards());
  EXPECT_EQ(read.schedule.graph().label(3), "3b");
  EXPECT_EQ(read.schedule.graph().label(4), "4");
  EXPECT_EQ(simulate(read.schedule, read.costs).makespan, timeline.makespan);
  EXPECT_EQ(json_text(schedule_json(read.schedule, read.costs, timeline, "")), json);
  const auto graph = [&](int) { return fold.schedule.graph(); };
  const Schedule of_csv = schedule_from_csv(schedule_csv(fold.schedule), "zb-h1", graph);
  EXPECT_EQ(simulate(of_csv, fold.costs).order, timeline.order);
}

TEST(TensorFold, NeedsAChainOfStages) {
  const Schedule whole = named("1f1b", 2, 4);
  EXPECT_THROW(tensor_fold(whole, {}, {.shards = 2, .workers_each = 3}), InputError);
  const TensorFold fold = tensor_fold(whole, {}, {.shards = 2, .workers_each = 2});
  EXPECT_THROW(tensor_fold(fold.schedule, fold.costs, {.shards = 2, .workers_each = 2}), InputError);
  Costs shared;
  shared.shared = {{.stages = {0, 1}, .weights = 4}};
  EXPECT_THROW(tensor_fold(whole, shared, {.shards = 2, .workers_each = 2}), InputError);
}

}  // namespace
}  // namespace starpipe::plan
