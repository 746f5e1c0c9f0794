// SPDX-License-Identifier: Apache-2.0
// Values that are not finite and data that cannot be read: part of engine_main.cpp's program.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/engine/engine_run.hpp"
#include "runtime/host/agreement.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "support/datasets.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

/// Other data, with some values replaced.
class Spoilt : public OtherData {
 public:
  struct Value {
    int step;
    int microbatch;
    float input;   ///< of every feature; NaN: as in the other data
    float target;  ///< likewise
  };
  Spoilt(const model::Dataset& data, std::vector<Value> values)
      : OtherData(data), values_(std::move(values)) {}

  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    OtherData::input(step, microbatch, branch, out);
    replace(step, microbatch, &Value::input, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    OtherData::target(step, microbatch, out);
    replace(step, microbatch, &Value::target, out);
  }

 private:
  void replace(int step, int microbatch, float Value::*what, std::span<float> out) const {
    for (const Value& value : values_) {
      if (value.step == step && value.microbatch == microbatch && !std::isnan(value.*what))
        std::ranges::fill(out, value.*what);
    }
  }

  std::vector<Value> values_;
};

constexpr float as_it_is = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// The message with which the first of two steps ends; "" when both go well.
std::string failure(const Schedule& schedule, const model::Network& network,
                    const std::vector<Floats>& parameters, const model::Dataset& data,
                    NonFinitePolicy policy = NonFinitePolicy::stop) {
  Engine engine(*session, schedule, network, sgd, model::given_values(parameters), patient, nullptr, policy);
  return message_of<RunFailure>([&] {
    for (int step = 0; step < 2; ++step) engine.run_step(step, data);
  });
}

/// Parameters of linear layers, all weights and all biases of a stage being equal.
std::vector<Floats> uniform(const model::Network& network, std::vector<std::pair<float, float>> of_stage) {
  std::vector<Floats> all;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    Floats& values = all.emplace_back();
    for (const model::Parameter& parameter : network.stages[s].parameters()) {
      const bool weight = parameter.name.ends_with("weight");
      values.insert(values.end(), parameter.size(), weight ? of_stage[s].first : of_stage[s].second);
    }
  }
  return all;
}

// The pass is the one that makes the first such value, not one that reads it, whichever ranks run them.
TEST(Engine, AValueThatIsNotFiniteEndsTheRunWithItsOrigin) {
  const model::Network chain = dag_network({3, {{0, 1}, {1, 2}}});
  const model::Network single = dag_network({1, {}});
  const Noise noise;
  for (const bool is_split : {false, true}) {
    SCOPED_TRACE(is_split ? "split" : "fused");
    const Schedule schedule = scattered(chain.graph, workers(), 4, is_split);
    const std::string passes = is_split ? "B" : "BW";
    EXPECT_EQ(failure(schedule, chain, start_values(chain), noise), "");
    // In the weights of a stage.
    auto spoilt = start_values(chain);
    spoilt[1].back() = as_it_is;
    EXPECT_EQ(failure(schedule, chain, spoilt, noise),
              "step 1, micro-batch 0, stage 1, pass F: the first result with infinity or NaN "
              "(training.nonfinite: stop)");
    EXPECT_EQ(failure(schedule, chain, spoilt, noise, NonFinitePolicy::proceed), "");
    // In the data of a micro-batch of the second step.
    EXPECT_THAT(failure(schedule, chain, start_values(chain), Spoilt(noise, {{1, 2, infinity, as_it_is}})),
                ::testing::StartsWith("step 2, micro-batch 2, stage 0, pass F:"));
    // The loss overflows.
    EXPECT_THAT(failure(schedule, chain, start_values(chain), Spoilt(noise, {{1, 3, as_it_is, 1e30F}})),
                ::testing::StartsWith("step 2, micro-batch 3, stage 2, pass F:"));
    // A finite loss, but the product of its gradient and the last weights overflows.
    EXPECT_THAT(failure(schedule, chain, uniform(chain, {{0.F, 0.F}, {0.F, 1e-22F}, {1e22F, 0.F}}),
                        Spoilt(noise, {{0, 1, as_it_is, 1e18F}})),
                ::testing::StartsWith("step 1, micro-batch 1, stage 2, pass " + passes + ":"));
    // The product of the loss's gradient and the input overflows, in W.
    EXPECT_EQ(failure(scattered(single.graph, workers(), 4, is_split), single,
                      uniform(single, {{1e-25F, 0.F}}), Spoilt(noise, {{0, 1, 1e25F, 1e18F}})),
              "step 1: the gradient of s0.weight has infinity or NaN (training.nonfinite: stop)");
  }
}

/// Other data, of which a micro-batch cannot be read.
class Unreadable : public OtherData {
 public:
  Unreadable(const model::Dataset& data, int step, int microbatch, bool input)
      : OtherData(data), step_(step), microbatch_(microbatch), input_(input) {}

  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    if (input_) refuse(step, microbatch);
    OtherData::input(step, microbatch, branch, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    if (!input_) refuse(step, microbatch);
    OtherData::target(step, microbatch, out);
  }

 private:
  void refuse(int step, int microbatch) const {
    if (step == step_ && microbatch >= microbatch_) {
      throw InputError("a file: micro-batch " + std::to_string(microbatch));
    }
  }
  int step_;
  int microbatch_;
  bool input_;
};

// All ranks end together, with the first micro-batch that some rank could not read.
TEST(Engine, DataThatCannotBeReadEndTheRun) {
  const model::Network network = tiny_mlp(workers());
  const auto data = data_for(network);
  for (const char* name : {"1f1b", "ddp"}) {
    const Schedule schedule = plan::make_schedule(name, {.workers = workers(), .microbatches = 6});
    for (const bool input : {true, false}) {
      EXPECT_EQ(failure(schedule, network, start_values(network), Unreadable(*data, 1, 3, input)),
                "step 2: a file: micro-batch 3")
          << name;
    }
    EXPECT_EQ(failure(schedule, network, start_values(network), Unreadable(*data, 2, 0, true)), "") << name;
  }
}

/// The steps of other data, without some.
class Without : public model::Dataset {
 public:
  Without(const model::Dataset& data, std::vector<int> steps) : data_(data), steps_(std::move(steps)) {}
  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    data_.input(steps_[index(step)], microbatch, branch, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    data_.target(steps_[index(step)], microbatch, out);
  }
  [[nodiscard]] std::vector<std::uint64_t> offsets(int step, int microbatch) const override {
    return data_.offsets(steps_[index(step)], microbatch);
  }
  [[nodiscard]] std::string sample_word() const override { return data_.sample_word(); }
  [[nodiscard]] std::size_t samples_per_microbatch() const override { return data_.samples_per_microbatch(); }

 private:
  const model::Dataset& data_;
  std::vector<int> steps_;  // those that are left
};

// Training continues as if the skipped steps had not been, on every worker that holds weights. AdamW's
// correction of its moments depends on the number of updates.
TEST(Engine, SkippedStepsLeaveNoTrace) {
  const model::OptimizerConfig adamw;
  for (const auto precision : {model::Precision::fp32, model::Precision::bf16}) {
    const model::Network network = tiny_mlp(workers(), 1, precision);
    const auto data = data_for(network);
    const Spoilt spoilt(*data, {{1, 2, as_it_is, infinity}, {3, 0, infinity, as_it_is}});
    for (const char* name : {"1f1b", "zb-h1", "ddp", "fsdp"}) {
      const Schedule schedule = plan::make_schedule(name, {.workers = workers(), .microbatches = 4});
      SCOPED_TRACE(::testing::Message() << name << ", " << to_string(precision));
      Engine engine(*session, schedule, network, adamw, model::given_values(start_values(network)), patient,
                    nullptr, NonFinitePolicy::skip);
      const std::uint64_t before = engine.bytes_sent_by_starpu();
      std::vector<std::string> skipped_for;
      for (int step = 0; step < 6; ++step) {
        const StepResult result = engine.run_step(step, spoilt);
        skipped_for.push_back(
            result.skipped_for ? plan::to_string(schedule.job(result.skipped_for->pass.value())) : "");
      }
      EXPECT_EQ(skipped_for[1], plan::to_string(plan::Job{schedule.stages() - 1, 2, plan::Pass::F}));
      EXPECT_EQ(skipped_for[3], plan::to_string(plan::Job{0, 0, plan::Pass::F}));
      EXPECT_EQ(std::ranges::count(skipped_for, ""), 4);
      const std::uint64_t sent = engine.bytes_sent_by_starpu() - before;
      std::uint64_t all_sent = 0;
      MPI_Allreduce(&sent, &all_sent, 1, MPI_UINT64_T, MPI_SUM, session->mpi().comm());
      EXPECT_EQ(all_sent, 6 * bytes_between_ranks(engine.graph(), session->map()));
      const auto trained = engine.parameters();
      SequentialRun sequential(schedule, network, adamw, start_values(network));
      const Without good(*data, {0, 2, 4, 5});
      for (int step = 0; step < 4; ++step) sequential.step(step, good);
      if (!is_root()) continue;
      if (our_policy()) {
        EXPECT_TRUE(trained == sequential.parameters());
      } else {
        expect_close(trained, sequential.parameters(), tolerance_of(network), "parameters");
      }
    }
  }
}

// Each worker's sum of gradients is finite in fp32, but not the sum of both.
TEST(Engine, ASumOfGradientsThatOverflowsIsFoundByItsNorm) {
  if (workers() == 1) GTEST_SKIP() << "one worker has one sum";
  const model::Network network = dag_network({1, {}});
  const Noise noise;
  // y = 0. The gradient of a weight is 2.5e38 for each micro-batch: input times target, times 3 rows, 2 / 12
  // of the mean square, and 1 / 2 of the mean over micro-batches.
  const Spoilt spoilt(noise, {{1, 0, 1e21F, -1e18F}, {1, 1, 1e21F, -1e18F}});
  const Schedule schedule =
      plan::make_schedule("ddp", {.workers = workers(), .microbatches = 2, .graph = network.graph});
  const auto zeros = uniform(network, {{0.F, 0.F}});
  const model::OptimizerConfig still = {.kind = "sgd", .learning_rate = 0};
  for (const NonFinitePolicy policy : {NonFinitePolicy::stop, NonFinitePolicy::skip}) {
    Engine engine(*session, schedule, network, still, model::given_values(zeros), patient, nullptr, policy);
    EXPECT_FALSE(engine.run_step(0, spoilt).skipped_for);
    std::string message;
    try {
      const StepResult result = engine.run_step(1, spoilt);
      for (const float loss : result.losses) EXPECT_TRUE(std::isfinite(loss));
      ASSERT_TRUE(result.skipped_for);
      EXPECT_FALSE(result.skipped_for->pass);
      EXPECT_EQ(result.skipped_for->parameter, "s0.weight");
      EXPECT_FALSE(engine.run_step(2, spoilt).skipped_for);
    } catch (const RunFailure& ended) {
      message = ended.what();
    }
    EXPECT_EQ(message,
              policy == NonFinitePolicy::skip
                  ? ""
                  : "step 2: the gradient of s0.weight has infinity or NaN (training.nonfinite: stop)");
  }
}

}  // namespace
}  // namespace starpipe::runtime
