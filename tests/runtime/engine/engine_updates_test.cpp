// SPDX-License-Identifier: Apache-2.0
// Sums of gradients, clipping and updates on the engine: part of engine_main.cpp's program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/reference.hpp"
#include "runtime/engine/engine_run.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "support/datasets.hpp"
#include "support/floats.hpp"
#include "support/networks.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

TEST(Engine, ReplicasAreTheSingleCopy) {
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  const Outcome replicas =
      train(plan::make_schedule("ddp", {.workers = workers(), .microbatches = 6}), network, sgd, *data, 3);
  const Outcome single =
      train(plan::make_schedule("1f1b", {.workers = workers(), .microbatches = 6}), network, sgd, *data, 3);
  for (std::size_t step = 0; step < 3; ++step) {
    for (std::size_t b = 0; b < 6; ++b) {
      EXPECT_NEAR(replicas.losses[step][b], single.losses[step][b], 1e-5F * single.losses[step][b]);
    }
  }
  expect_close(replicas.gradients, single.gradients, 1e-5, "gradient");
  expect_close(replicas.parameters, single.parameters, 1e-5, "parameters");
}

/// A recipe of GPT-2's kind. The clip binds in every step of the tests below.
const model::OptimizerConfig recipe = {.kind = "adamw",
                                       .learning_rate = 1e-2,
                                       .weight_decay = 0.1,
                                       .decay = "matrices",
                                       .schedule = {"cosine", 2, 1e-3, 6},
                                       .clip = 0.25};

/// The network with as many stages as the schedule has on all workers. All of them differ in their cuts only.
model::Network network_for(const char* schedule, model::Precision precision = model::Precision::fp32) {
  return tiny_gpt(plan::find_schedule(schedule).stages_per_worker * workers(), precision, 2 * workers());
}

// One micro-batch leaves no choice in the order of a sum. So whatever the schedule, the cuts, the holders and
// the ranks, gradient, norm and weights have the bits of the reference.
TEST(Engine, ClippedUpdatesDoNotDependOnTheSchedule) {
  constexpr int steps = 2;
  const model::Network whole = tiny_gpt(1, model::Precision::fp32, 2 * workers());
  const auto data = data_for(whole);
  const auto reference = model::train_reference(whole, *data, recipe, start_values(whole), 1, steps);
  for (const char* name : {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "v-half", "ddp", "fsdp"}) {
    SCOPED_TRACE(name);
    const model::Network network = network_for(name);
    const Schedule schedule =
        plan::make_schedule(name, {.workers = workers(), .microbatches = 1, .graph = network.graph});
    const Outcome run = train(schedule, network, recipe, *data, steps);
    EXPECT_EQ(run.norms, reference.norms);
    EXPECT_EQ(run.clipped, (std::vector{0, 1}));
    for (int step = 0; step < steps; ++step)
      EXPECT_EQ(run.rates[index(step)], model::learning_rate(recipe.schedule, recipe.learning_rate, step));
    expect_transfers(run, schedule, network);
    if (!is_root()) continue;
    EXPECT_EQ(joined(run.gradients), joined(reference.gradients));
    EXPECT_EQ(joined(run.parameters), joined(reference.parameters));
  }
}

// These add up the micro-batches in their order, as the reference does.
TEST(Engine, ClippedUpdatesOfManyMicrobatches) {
  if (!our_policy()) GTEST_SKIP() << "other policies have no fixed order";
  constexpr int steps = 3;
  for (const auto precision : {model::Precision::fp32, model::Precision::bf16}) {
    const model::Network whole = tiny_gpt(1, precision, 2 * workers());
    const auto data = data_for(whole);
    const auto reference = model::train_reference(whole, *data, recipe, start_values(whole), 8, steps);
    for (const char* name : {"1f1b", "zb-h1", "interleaved-1f1b"}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << to_string(precision));
      const model::Network network = network_for(name, precision);
      const Schedule schedule =
          plan::make_schedule(name, {.workers = workers(), .microbatches = 8, .graph = network.graph});
      const Outcome run = train(schedule, network, recipe, *data, steps);
      EXPECT_EQ(run.norms, reference.norms);
      expect_transfers(run, schedule, network);
      if (is_root()) {
        EXPECT_EQ(joined(run.parameters), joined(reference.parameters));
      }
    }
  }
}

TEST(Engine, AClipThatDoesNotBindChangesNothing) {
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  model::OptimizerConfig loose = sgd;
  loose.clip = 1e6;
  for (const char* name : {"1f1b", "zb-h1", "ddp", "fsdp"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = plan::make_schedule(name, {.workers = workers(), .microbatches = 4});
    const Outcome with = train(schedule, network, loose, *data, 2);
    EXPECT_TRUE(with.clipped.empty());
    expect_transfers(with, schedule, network);
    if (!our_policy()) continue;
    const Outcome without = train(schedule, network, sgd, *data, 2);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.norms, without.norms);
    EXPECT_TRUE(with.parameters == without.parameters);
  }
}

// A large epsilon: else AdamW would make a full step from the rounding error of a gradient that is zero.
TEST(Engine, AdamW) {
  const model::OptimizerConfig adamw = {
      .kind = "adamw", .learning_rate = 1e-2, .weight_decay = 0.1, .epsilon = 1e-2};
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  for (const char* name : {"1f1b", "ddp"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = plan::make_schedule(name, {.workers = workers(), .microbatches = 4});
    const Outcome once = train(schedule, network, adamw, *data, 1);
    expect_trained(once, schedule, network, adamw, *data);
    if (!our_policy()) continue;
    const Outcome run = train(schedule, network, adamw, *data, 2);
    expect_same_bits(run, schedule, network, adamw, *data);
  }
}

TEST(Engine, TwoRunsAreEqualBitByBit) {
  if (!our_policy()) GTEST_SKIP() << "other policies have no fixed order";
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  const Schedule schedule = split(plan::make_schedule("ddp", {.workers = workers(), .microbatches = 7}));
  const Outcome first = train(schedule, network, sgd, *data, 3);
  const Outcome second = train(schedule, network, sgd, *data, 3);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_TRUE(first.gradients == second.gradients);
  EXPECT_TRUE(first.parameters == second.parameters);
}

}  // namespace
}  // namespace starpipe::runtime
