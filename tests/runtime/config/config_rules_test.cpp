// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/config/config_keys.hpp"
#include "support/message_of.hpp"

namespace starpipe::runtime {
namespace {

template <class Change>
std::string problem(Change change) {
  Config config;
  change(config);
  return message_of([&] { check_values(config); });
}

/// The problem of the optimizer's settings.
template <class Change>
std::string problem_of_optimizer(Change change) {
  return problem([&](Config& config) { change(config.training.optimizer); });
}

TEST(CheckValues, NamesTheKeyAndTheValue) {
  EXPECT_EQ(problem([](Config&) {}), "");
  EXPECT_EQ(problem([](Config& c) { c.training.steps = 0; }), "training.steps: must be at least 1, got 0");
  EXPECT_EQ(problem([](Config& c) { c.model.kind = "rnn"; }),
            "model.kind: 'rnn' is not one of gpt, llama, mlp");
  EXPECT_EQ(problem([](Config& c) {
              c.schedule.cuts = {1, -2};
            }),
            "schedule.cuts: must be at least 1, got -2");
  EXPECT_EQ(problem([](Config& c) { c.runtime.timeout = 0; }),
            "runtime.timeout: must be greater than 0, got 0");
  EXPECT_EQ(problem([](Config& c) { c.runtime.memory_limits = {5}; }),
            "runtime.memory_limit: must be at least 1024, got 5");
}

TEST(CheckValues, OfTheOptimizer) {
  const std::string prefix = "training.optimizer.";
  EXPECT_EQ(problem_of_optimizer([](auto& c) { c.kind = "lion"; }),
            prefix + "kind: 'lion' is not one of adamw, sgd");
  EXPECT_EQ(problem_of_optimizer([](auto& c) { c.learning_rate = 0; }), "");
  EXPECT_EQ(problem_of_optimizer([](auto& c) { c.learning_rate = -1; }),
            prefix + "learning_rate: must be at least 0, got -1");
  EXPECT_EQ(problem_of_optimizer([](auto& c) { c.weight_decay = -1; }),
            prefix + "weight_decay: must be at least 0, got -1");
  EXPECT_EQ(problem_of_optimizer([](auto& c) { c.beta1 = 1; }),
            prefix + "beta1: must be at least 0 and less than 1, got 1");
  EXPECT_EQ(problem_of_optimizer([](auto& c) { c.epsilon = std::numeric_limits<double>::quiet_NaN(); }),
            prefix + "epsilon: must be at least 0, got nan");
  EXPECT_EQ(problem_of_optimizer([](auto& c) { c.momentum = -1; }), "") << "adamw has none";
}

TEST(CheckValues, NamesValuesThatOtherKeysRefuse) {
  EXPECT_EQ(problem([](Config& c) { c.model.precision = model::Precision::tf32; }),
            "runtime.precision: tf32 does not apply with runtime.device cpu");
  EXPECT_EQ(problem([](Config& c) {
              c.runtime.device = {"cpu", "cuda"};
              c.runtime.emulate.emplace();
            }),
            "runtime.device: cuda does not apply with runtime.emulate");
}

// Every condition names a key or a section, and values that this key can have. A misspelt one would never
// hold.
TEST(ConfigKeys, HaveConditionsThatCanHold) {
  const std::vector<ConfigKey> keys = config_keys();
  const auto expect_possible = [&](const ConfigKey& key, const Condition& condition) {
    SCOPED_TRACE(key.name + " " + condition.text());
    if (condition.key.empty()) return;
    const ConfigKey* const other = find_key(keys, condition.key);
    if (other == nullptr) {
      EXPECT_TRUE(std::ranges::any_of(
          keys, [&](const ConfigKey& one) { return one.name.starts_with(condition.key + "."); }));
      EXPECT_TRUE(condition.values.empty());
      return;
    }
    const bool is_text = other->type.kind == ValueType::Kind::word;
    for (const std::string& value : condition.values)
      EXPECT_EQ(other->type.problem(is_text ? nlohmann::json(value) : nlohmann::json::parse(value)), "");
  };
  for (const ConfigKey& key : keys) {
    for (const Condition& condition : key.only_with) expect_possible(key, condition);
    for (const Condition& condition : key.not_with) expect_possible(key, condition);
    for (const DefaultUnder& other : key.defaults) expect_possible(key, other.condition);
    for (const RefusedValue& refused : key.refused_values) {
      expect_possible(key, refused.condition);
      EXPECT_EQ(key.type.problem(refused.value), "") << key.name;
    }
    if (key.required) expect_possible(key, *key.required);
  }
}

TEST(SetDefaults, FollowOtherKeys) {
  const std::vector<ConfigKey> keys = config_keys();
  Config config;
  config.model.kind = "mlp";
  config.training.optimizer.kind = "sgd";
  config.schedule.file = "x.csv";
  set_defaults(config, keys, [](const ConfigKey& key) { return key.name == "schedule.workers"; });
  EXPECT_EQ(config.data.kind, "synthetic");
  EXPECT_EQ(config.training.optimizer.weight_decay, 0);
  EXPECT_FALSE(config.training.microbatches.has_value()) << "the file's";
  EXPECT_EQ(config.schedule.workers, 1) << "given";
}

}  // namespace
}  // namespace starpipe::runtime
