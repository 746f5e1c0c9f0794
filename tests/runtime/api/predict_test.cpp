// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "runtime/api/small_training.hpp"
#include "starpipe/starpipe.hpp"
#include "support/message_of.hpp"

namespace starpipe {
namespace {

using ::testing::HasSubstr;

Config emulated() {
  Config config = mlp(3);
  config.runtime.emulate = runtime::EmulationConfig{};
  config.runtime.emulate->F = {0.004};
  config.runtime.emulate->B = {0.006};
  config.runtime.emulate->W = {0.002};
  config.runtime.emulate->comm = 0.001;
  return config;
}

TEST(Predict, IsWhatTheReportPredicts) {
  const Prediction prediction = predict(emulated(), {.schedule = pipeline()});
  EXPECT_EQ(prediction.timeline.spans.size(), prediction.schedule.id_count());
  EXPECT_EQ(prediction.memory_bytes.size(), 2U);
  EXPECT_GT(prediction.received_bytes[1], 0U);
  Runtime runtime;
  Trainer trainer(runtime, emulated(), {.schedule = pipeline()});
  EXPECT_THROW(trainer.report(), std::logic_error);
  EXPECT_FALSE(trainer.step().loss);
  trainer.step();
  const std::string text = trainer.report();
  if (runtime.rank() != 0) {
    EXPECT_EQ(text, "");
    return;
  }
  const nlohmann::json report = nlohmann::json::parse(text);
  EXPECT_NEAR(report.at("makespan").at("predicted").get<double>(), prediction.timeline.makespan, 1e-9);
  EXPECT_NEAR(report.at("bubble_fraction").at("predicted").get<double>(), prediction.timeline.bubble_fraction,
              1e-9);
}

TEST(Predict, TakesDurations) {
  const Prediction prediction =
      predict(mlp(), {.schedule = pipeline()}, {{.F = 1, .B = 1, .W = 1}, {.F = 1, .B = 1, .W = 1}});
  EXPECT_EQ(prediction.timeline.makespan, 15);  // (4 + 1) times F + BW of length 2
}

TEST(Predict, ThrowsForWhatCannotWork) {
  Config config = mlp();
  config.schedule.name = "no-such-schedule";
  EXPECT_THAT(message_of<InputError>([&] { predict(config); }), HasSubstr("no-such-schedule"));
}

TEST(Predict, RefusesValuesOutOfRange) {
  for (const bool partition : {false, true}) {
    const auto refusal = [&](auto change) {
      Config config = mlp();
      config.schedule.partition = partition;
      change(config);
      return message_of<InputError>([&] { predict(config); });
    };
    EXPECT_THAT(refusal([](Config& c) { c.training.microbatch_size = 0; }), HasSubstr("microbatch_size"));
    EXPECT_THAT(refusal([](Config& c) { c.training.microbatches = -1; }), HasSubstr("training.microbatches"));
    EXPECT_THAT(refusal([](Config& c) { c.schedule.workers = 0; }), HasSubstr("schedule.workers"));
    EXPECT_THAT(refusal([](Config& c) { c.model.kind = "rnn"; }), HasSubstr("model.kind: 'rnn'"));
    EXPECT_THAT(refusal([](Config& c) { c.model.options["hidden"] = -4; }), HasSubstr("model.hidden"));
  }
  const plan::Durations one{.F = 1, .B = 1, .W = 1};
  const auto refusal = [&](double time) {
    return message_of<InputError>([&] { predict(mlp(), {}, {one, {.F = time, .B = 1, .W = 1}}); });
  };
  EXPECT_THAT(refusal(-1), HasSubstr("runtime.emulate.F"));
  EXPECT_THAT(refusal(std::nan("")), HasSubstr("runtime.emulate.F"));
}

// StarPU counts the words of a datum in 32 bits. Nothing is allocated.
TEST(Predict, RefusesStagesThatNoHandleHolds) {
  const auto refusal = [](int hidden, const char* optimizer) {
    Config config = mlp();
    config.model.options = {{"layers", 6}, {"hidden", hidden}, {"inputs", 4}, {"outputs", 2}};
    config.training.optimizer.kind = optimizer;
    return message_of<InputError>([&] { predict(config); });
  };
  EXPECT_EQ(refusal(36'000, "sgd"), "");  // 3.9e9 words of weights in a stage
  EXPECT_THAT(refusal(50'000, "sgd"), HasSubstr("weights of 200"));
  EXPECT_THAT(refusal(50'000, "sgd"), HasSubstr("at most 17179869180 "));
  EXPECT_EQ(refusal(24'000, "adamw"), "");  // 3.5e9 words of moments
  EXPECT_THAT(refusal(30'000, "adamw"), HasSubstr("optimizer state of 216"));
}

}  // namespace
}  // namespace starpipe
