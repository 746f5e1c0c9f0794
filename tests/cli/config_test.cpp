// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/input/input_files.hpp"
#include "runtime/config/config_keys.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/network_registry.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"

namespace starpipe::cli {
namespace {

using ::testing::ElementsAre;

constexpr const char* minimal_mlp = R"(model: {kind: mlp}
training: {steps: 3}
schedule: {name: gpipe, workers: 2}
)";

class LoadConfig : public ::testing::Test {
 protected:
  runtime::Config load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    std::ofstream(file_) << text;
    return load_config(file_, overrides);
  }

  /// The message of load(), without the folder.
  std::string problem(const std::string& text, const std::vector<std::string>& overrides = {}) {
    std::string message = message_of([&] { load(text, overrides); });
    const std::string prefix = folder_.path().string() + "/";
    if (message.starts_with(prefix)) message.erase(0, prefix.size());
    return message;
  }
  std::string override_problem(const std::string& argument) { return problem(minimal_mlp, {argument}); }

  const Folder folder_;
  const std::filesystem::path file_ = folder_ / "c.yaml";
};

TEST_F(LoadConfig, SetsOneMemberOfAMap) {
  const std::string file =
      "model: {kind: mlp}\ntraining: {steps: 3}\n"
      "schedule: {name: gpipe, workers: 2, options: {extra: 1, waves: 3}}\n";
  using Options = std::map<std::string, int>;
  const auto options = [&](const std::vector<std::string>& overrides) {
    return load(file, overrides).schedule.options;
  };
  EXPECT_EQ(options({"schedule.options.extra=2"}), (Options{{"extra", 2}, {"waves", 3}}));
  EXPECT_EQ(options({"schedule.options.new=0"}), (Options{{"extra", 1}, {"new", 0}, {"waves", 3}}));
  EXPECT_EQ(options({"schedule.options.extra=2", "schedule.options.extra=4"}).at("extra"), 4);
  // A map replaces what was given before it.
  EXPECT_EQ(options({"schedule.options={a: 5}", "schedule.options.b=6"}), (Options{{"a", 5}, {"b", 6}}));
  EXPECT_EQ(options({"schedule.options.b=6", "schedule.options={a: 5}"}), (Options{{"a", 5}}));
  // The file's options belong to the file's schedule.
  EXPECT_EQ(options({"schedule.name=1f1b", "schedule.options.b=6"}), (Options{{"b", 6}}));
  EXPECT_EQ(options({"schedule.options.b=6", "schedule.name=1f1b"}), (Options{{"b", 6}}));
  EXPECT_EQ(load(minimal_mlp, {"schedule.options.b=6"}).schedule.options, (Options{{"b", 6}}));
  EXPECT_EQ(override_problem("schedule.options.b=x"),
            "--set schedule.options.b: expected an integer, got 'x'");
  EXPECT_EQ(override_problem("schedule.options.b=-1"),
            "--set schedule.options.b: must be at least 0, got -1");
  EXPECT_THAT(override_problem("schedule.options.=1"),
              ::testing::HasSubstr("unknown key 'schedule.options.'"));
  EXPECT_THAT(override_problem("schedule.options.a.b=1"), ::testing::HasSubstr("unknown key"));
  EXPECT_THAT(override_problem("schedule.name.a=1"), ::testing::HasSubstr("unknown key"));
  EXPECT_EQ(overridden_keys({"schedule.options.b=6"}), (std::set<std::string>{"schedule.options"}));
}

TEST_F(LoadConfig, LeavesDefaultsWhereNothingIsGiven) {
  const runtime::Config config = load(minimal_mlp);
  EXPECT_EQ(config.model.kind, "mlp");
  EXPECT_EQ(config.data.kind, "synthetic");
  EXPECT_EQ(config.training.steps, 3);
  EXPECT_EQ(config.training.optimizer.kind, "adamw");
  EXPECT_DOUBLE_EQ(config.training.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.schedule.workers, 2);
  EXPECT_FALSE(config.schedule.stages.has_value());
  EXPECT_FALSE(config.schedule.discipline.has_value());
  EXPECT_EQ(config.runtime.policy, "starpipe");
  EXPECT_EQ(config.runtime.device, std::vector<std::string>{"cpu"});
  EXPECT_EQ(config.source, file_.string());
}

TEST_F(LoadConfig, ReadsEveryKeyOfGpt) {
  const runtime::Config config = load(R"(
model:
  kind: gpt
  layers: 6
  hidden: 96
  heads: 3
  context: 64
  init: w.safetensors
data: {kind: text, path: some/file}
training:
  microbatches: 5
  microbatch_size: 2
  steps: 7
  seed: 18446744073709551615
  optimizer: {kind: adamw, learning_rate: 3.0e-4, weight_decay: 0.1, beta1: 0.8, beta2: .95, epsilon: 1e-6}
schedule: {name: fslpp, workers: 4, stages: 8, groups: 2, placement: [0, 3], cuts: [1, 2],
           discipline: bounded, memory_limit: 3, home: none}
runtime: {policy: worker-order, device: cuda, precision: tf32, window: 70, timeout: 1.5, mapping: auto,
          memory_limit: 2MiB}
)");
  EXPECT_EQ(model::option(config.model, "layers"), 6);
  EXPECT_EQ(model::option(config.model, "hidden"), 96);
  EXPECT_EQ(model::option(config.model, "heads"), 3);
  EXPECT_EQ(model::option(config.model, "context"), 64);
  EXPECT_EQ(config.model.init, "w.safetensors");
  EXPECT_EQ(config.data.path, "some/file");
  EXPECT_EQ(config.training.microbatches, 5);
  EXPECT_EQ(config.training.microbatch_size, 2);
  EXPECT_EQ(config.training.seed, 18446744073709551615U);
  EXPECT_DOUBLE_EQ(config.training.optimizer.learning_rate, 3e-4);
  EXPECT_DOUBLE_EQ(config.training.optimizer.weight_decay, 0.1);
  EXPECT_DOUBLE_EQ(config.training.optimizer.beta1, 0.8);
  EXPECT_DOUBLE_EQ(config.training.optimizer.beta2, 0.95);
  EXPECT_DOUBLE_EQ(config.training.optimizer.epsilon, 1e-6);
  EXPECT_EQ(config.schedule.name, "fslpp");
  EXPECT_EQ(config.schedule.stages, 8);
  EXPECT_EQ(config.schedule.groups, 2);
  EXPECT_THAT(config.schedule.placement, ElementsAre(0, 3));
  EXPECT_THAT(config.schedule.cuts, ElementsAre(1, 2));
  EXPECT_EQ(config.schedule.discipline, plan::Discipline::bounded);
  EXPECT_EQ(config.schedule.memory_limits, std::vector<int>{3});
  EXPECT_EQ(config.schedule.homes, std::vector{plan::Home::none});
  EXPECT_EQ(config.runtime.policy, "worker-order");
  EXPECT_EQ(config.runtime.device, std::vector<std::string>{"cuda"});
  EXPECT_EQ(config.model.precision, model::Precision::tf32);
  EXPECT_EQ(config.runtime.window, 70);
  EXPECT_DOUBLE_EQ(config.runtime.timeout, 1.5);
  EXPECT_EQ(config.runtime.mapping, runtime::MappingKind::automatic);
  EXPECT_THAT(config.runtime.memory_limits, ElementsAre(2U << 20));
}

TEST_F(LoadConfig, DevicesAreOfAllWorkersOrOfEach) {
  const auto devices = [&](const std::string& value) {
    return load(minimal_mlp, {"schedule.workers=3", "runtime.device=" + value}).runtime;
  };
  const runtime::RuntimeConfig all = devices("cuda");
  EXPECT_TRUE(all.on_gpu(0) && all.on_gpu(2) && all.uses_gpus());
  EXPECT_FALSE(all.is_mixed());
  const runtime::RuntimeConfig each = devices("[cpu, cuda, cpu]");
  EXPECT_TRUE(!each.on_gpu(0) && each.on_gpu(1) && !each.on_gpu(2) && each.is_mixed());
  EXPECT_FALSE(devices("cpu").uses_gpus());
  EXPECT_FALSE(devices("[cuda, cuda, cuda]").is_mixed());
  EXPECT_THROW(devices("[cuda]"), InputError) << "a list has one for each";
}

TEST_F(LoadConfig, AFileStandsForANamedSchedule) {
  const std::string text = "model: {kind: mlp}\ntraining: {steps: 3}\nschedule: {file: x.csv}\n";
  const runtime::Config config = load(text);
  EXPECT_EQ(config.schedule.file, "x.csv");
  EXPECT_FALSE(config.schedule.workers.has_value());
  EXPECT_FALSE(config.training.microbatches.has_value());
  EXPECT_EQ(load(text, {"training.microbatches=6", "schedule.workers=2"}).training.microbatches, 6);
  // --set wins over the file, and drops the keys of the file's schedule.
  const auto changed = load(minimal_mlp, {"schedule.file=y.json"});
  EXPECT_EQ(changed.schedule.file, "y.json");
  EXPECT_FALSE(changed.schedule.workers.has_value());
  EXPECT_FALSE(runtime::config_json(changed)["schedule"].contains("name"));
  EXPECT_FALSE(load(text, {"schedule.name=1f1b", "schedule.workers=2"}).schedule.file.has_value());
  EXPECT_EQ(problem("model: {kind: mlp}\ntraining: {steps: 3}\nschedule: {file: x.csv, name: 1f1b}\n"),
            "c.yaml:3: schedule.name: does not apply with schedule.file");
  EXPECT_EQ(load(minimal_mlp, {"schedule.workers=3", "schedule.file=y.json"}).schedule.workers, 3);
  EXPECT_EQ(problem(minimal_mlp, {"schedule.placement=[0]", "schedule.file=y.json"}),
            "--set schedule.placement: does not apply with schedule.file");
}

TEST_F(LoadConfig, SgdDecaysNothingUnlessAsked) {
  EXPECT_EQ(load(minimal_mlp, {"training.optimizer.kind=sgd"}).training.optimizer.weight_decay, 0);
  const auto asked = load(
      minimal_mlp, {"training.optimizer={kind: sgd, weight_decay: 0.5, momentum: 0.9, learning_rate: 1}"});
  EXPECT_EQ(asked.training.optimizer.weight_decay, 0.5);
  EXPECT_EQ(asked.training.optimizer.momentum, 0.9);
}

TEST_F(LoadConfig, TheLastOverrideWins) {
  const auto config =
      load(minimal_mlp, {"training.steps=4", "schedule.placement=[1, 0]", "training.steps=5"});
  EXPECT_EQ(config.training.steps, 5);
  EXPECT_THAT(config.schedule.placement, ElementsAre(1, 0));
}

TEST_F(LoadConfig, IntegersAreDecimal) {
  EXPECT_EQ(load(minimal_mlp, {"training.steps=010"}).training.steps, 10);
}

/// A value of a key that is not its default, as YAML.
std::string other_value(const runtime::ConfigKey& key) {
  using Kind = runtime::ValueType::Kind;
  switch (key.type.kind) {
    case Kind::whole:
      if (key.type.count == runtime::ValueType::Count::map) return "{some: 7}";
      return key.type.count == runtime::ValueType::Count::list ? "[3, 5]" : "7";
    case Kind::number:
      return "0.3";
    case Kind::boolean:
      return key.default_value == true ? "false" : "true";
    case Kind::bytes:
      return "3MiB";
    case Kind::time:
      return "0.1us";
    case Kind::word:
      break;
  }
  if (key.name == "model.kind") return "gpt";
  if (key.name == "data.kind") return "text";
  if (key.name == "schedule.home") return "worker:3";
  if (key.name == "schedule.slice_sizes") return "7";
  return key.type.words.empty() ? "some: text" : key.type.words.back();
}

/// The other settings that the key requires.
std::vector<std::string> needed_by(const runtime::ConfigKey& key) {
  std::vector<std::string> overrides;
  bool text_network = false;
  for (const runtime::Condition& condition : key.only_with) {
    // Keys without values are schedule.partition and schedule.vocabulary.shards.
    const std::string any = condition.key == "schedule.partition" ? "auto" : "2";
    overrides.push_back(condition.key + "=" + (condition.values.empty() ? any : condition.values.front()));
    text_network |=
        condition.key == "model.kind" && model::find_network(condition.values.front()).data.front() == "text";
  }
  if (key.name.starts_with("data.")) overrides.emplace_back("model.kind=gpt");  // an mlp reads no files
  const bool of_files = key.name.starts_with("data.") && key.name != "data.path";
  if (text_network || of_files || key.name == "model.kind") overrides.emplace_back("data.path=x");
  if (key.name.starts_with("runtime.emulate.")) {
    const char* comm = key.name == "runtime.emulate.links" ? "" : ", comm: 5us";
    overrides.push_back(fmt::format("runtime.emulate={{F: 2ms, B: [1ms, 3us], W: 0s{}}}", comm));
  }
  return overrides;
}

TEST_F(LoadConfig, ReadsTheConfigOfAReport) {
  const std::map<std::string, std::string> files = {{"schedule.profile", "profile.yaml"},
                                                    {"runtime.links", "links.yaml"},
                                                    {"runtime.emulate.links", "links.yaml"}};
  std::ofstream(folder_ / "profile.yaml") << "layers: [{F: 1}]";
  std::ofstream(folder_ / "links.yaml") << "levels: [{latency: 1us, bandwidth: 1GB/s}]";
  for (const runtime::ConfigKey& key : runtime::config_keys()) {
    SCOPED_TRACE(key.name);
    EXPECT_FALSE(key.meaning.empty());
    std::string pointer = "/" + key.name;
    std::ranges::replace(pointer, '.', '/');
    const nlohmann::ordered_json::json_pointer at(pointer);
    std::vector<std::string> overrides = needed_by(key);
    const auto file = files.find(key.name);
    const std::string value = file == files.end() ? other_value(key) : (folder_ / file->second).string();
    overrides.push_back(key.name + "='" + value + "'");
    if (value.starts_with('[') || value.starts_with('{')) overrides.back() = key.name + "=" + value;
    const nlohmann::ordered_json written = runtime::config_json(load(minimal_mlp, overrides));
    ASSERT_TRUE(written.contains(at)) << written;
    EXPECT_NE(written[at], runtime::config_json(load(minimal_mlp)).value(at, nlohmann::ordered_json()));
    EXPECT_EQ(runtime::config_json(load(written.dump(2))), written);
  }
}

TEST_F(LoadConfig, EmptySectionsAreFine) {
  EXPECT_EQ(load(std::string(minimal_mlp) + "runtime:\n").runtime.policy, "starpipe");
}

TEST_F(LoadConfig, NamesUnknownKeys) {
  EXPECT_EQ(problem("model: {kind: gpt,\n  haeds: 4}\n"),
            "c.yaml:2: unknown key 'model.haeds' (did you mean 'model.heads'?)");
  EXPECT_EQ(problem("modell: {kind: gpt}\n"), "c.yaml:1: unknown key 'modell' (did you mean 'model'?)");
  EXPECT_EQ(problem("model: {steps: 4}\n"),
            "c.yaml:1: unknown key 'model.steps' (did you mean 'training.steps'?)");
  EXPECT_EQ(problem("model: {quux: 4}\n"), "c.yaml:1: unknown key 'model.quux'");
  EXPECT_EQ(override_problem("training.step=1"),
            "--set training.step: unknown key 'training.step' (did you mean 'training.steps'?)");
  EXPECT_EQ(override_problem("training={step: 1}"),
            "--set training: unknown key 'training.step' (did you mean 'training.steps'?)");
}

TEST_F(LoadConfig, NamesValuesOfTheWrongType) {
  EXPECT_EQ(problem("model: {kind: mlp}\ntraining:\n  steps: abc\n"),
            "c.yaml:3: training.steps: expected an integer, got 'abc'");
  EXPECT_EQ(problem("training: {steps: [1]}"), "c.yaml:1: training.steps: expected an integer, got a list");
  EXPECT_EQ(problem("training: {steps: }"), "c.yaml:1: training.steps: expected an integer, got nothing");
  EXPECT_EQ(problem("training: 4"), "c.yaml:1: training: expected a map, got '4'");
  EXPECT_EQ(problem("model: {kind: {a: b}}"), "c.yaml:1: model.kind: expected a word, got a map");
  EXPECT_EQ(override_problem("training.steps=1.5"), "--set training.steps: expected an integer, got '1.5'");
  EXPECT_EQ(override_problem("training.steps="), "--set training.steps: expected an integer, got nothing");
  EXPECT_EQ(override_problem("training={}"),
            "--set training: expected a map with at least one key, got an empty map");
  EXPECT_EQ(override_problem("schedule.placement=0,1"),
            "--set schedule.placement: expected a list of integers such as [0, 1], got '0,1'");
  EXPECT_EQ(override_problem("training.optimizer.learning_rate=fast"),
            "--set training.optimizer.learning_rate: expected a number, got 'fast'");
  EXPECT_EQ(override_problem("training.optimizer.learning_rate=1e999"),
            "--set training.optimizer.learning_rate: expected a finite number, got '1e999'");
}

TEST_F(LoadConfig, NamesValuesOutOfRange) {
  for (const char* key : {"training.steps", "training.microbatches", "training.microbatch_size",
                          "model.layers", "model.hidden", "schedule.workers", "schedule.stages",
                          "schedule.groups", "schedule.memory_limit", "runtime.workers_per_core"}) {
    const std::string_view name = key;
    const int max = name == "model.layers" ? 1 << 16
                    : name == "model.hidden" || name == "training.microbatch_size"
                        ? 1 << 20
                        : std::numeric_limits<int>::max();
    EXPECT_EQ(override_problem(std::string(key) + "=0"),
              std::string("--set ") + key + ": must be at least 1, got 0");
    EXPECT_EQ(override_problem(std::string(key) + "=99999999999999999999"),
              fmt::format("--set {}: must be at most {}, got 99999999999999999999", key, max));
    EXPECT_EQ(override_problem(std::string(key) + "=-99999999999999999999"),
              std::string("--set ") + key + ": must be at least 1, got -99999999999999999999");
  }
  EXPECT_EQ(override_problem("training.seed=-1"), "--set training.seed: must be at least 0, got -1");
  EXPECT_EQ(override_problem("training.optimizer.learning_rate=-1"),
            "--set training.optimizer.learning_rate: must be at least 0, got -1");
  for (const char* name : {"learning_rate", "weight_decay"}) {
    const std::string key = std::string("training.optimizer.") + name;
    EXPECT_EQ(override_problem(key + "=1e39"),
              "--set " + key +
                  ": must be at most 3.40282e+38, the largest number of fp32, "
                  "got 1e+39");
    EXPECT_EQ(override_problem(key + "=1e-300"),
              "--set " + key +
                  ": must be 0 or at least 1.4013e-45, the smallest number "
                  "of fp32, got 1e-300");
  }
  EXPECT_NE(override_problem("training.optimizer.epsilon=1e300"), "");
  EXPECT_EQ(override_problem("training.optimizer.learning_rate=3.4e38"), "");
  EXPECT_EQ(load(minimal_mlp, {"training.optimizer.learning_rate=0"}).training.optimizer.learning_rate, 0);
  EXPECT_EQ(override_problem("training.optimizer.beta1=1"),
            "--set training.optimizer.beta1: must be at least 0 and less than 1, got 1");
  EXPECT_EQ(override_problem("training.optimizer.weight_decay=-1"),
            "--set training.optimizer.weight_decay: must be at least 0, got -1");
  EXPECT_EQ(override_problem("schedule.placement=[0, -1]"),
            "--set schedule.placement: must be at least 0, got -1");
  EXPECT_EQ(override_problem("runtime.memory_limit=0x4KiB"),
            "--set runtime.memory_limit: expected a number of bytes such as 4096 or 16MiB, got '0x4KiB'");
  EXPECT_THAT(load(minimal_mlp, {"runtime.memory_limit=0010KiB"}).runtime.memory_limits,
              ElementsAre(10U << 10));
  EXPECT_THAT(
      load(minimal_mlp, {"runtime.memory_limit=[1MiB, 2048]", "schedule.workers=2"}).runtime.memory_limits,
      ElementsAre(1U << 20, 2048));
  EXPECT_EQ(
      override_problem("runtime.emulate.F=1e300s"),
      "--set runtime.emulate.F: expected a time of 0, or at least 1e-99 and at most 1e+99, got '1e300s'");
  EXPECT_EQ(override_problem("runtime.timeout=0"), "--set runtime.timeout: must be greater than 0, got 0");
}

TEST_F(LoadConfig, NamesChoicesThatDoNotExist) {
  EXPECT_EQ(override_problem("model.kind=rnn"), "--set model.kind: 'rnn' is not one of gpt, llama, mlp");
  EXPECT_EQ(override_problem("data.kind=tapes"),
            "--set data.kind: 'tapes' is not one of text, tokens, synthetic");
  EXPECT_EQ(override_problem("training.optimizer.kind=lion"),
            "--set training.optimizer.kind: 'lion' is not one of adamw, sgd");
  EXPECT_EQ(override_problem("schedule.discipline=lazy"),
            "--set schedule.discipline: 'lazy' is not one of greedy, bounded, ordered");
  EXPECT_EQ(override_problem("runtime.precision=fp16"),
            "--set runtime.precision: 'fp16' is not one of fp32, tf32, bf16");
}

TEST_F(LoadConfig, Bf16IsForAnyDevice) {
  EXPECT_EQ(load(minimal_mlp, {"runtime.precision=bf16"}).model.precision, model::Precision::bf16);
  EXPECT_EQ(load(minimal_mlp, {"runtime.precision=bf16", "runtime.device=cuda"}).model.precision,
            model::Precision::bf16);
}

TEST_F(LoadConfig, Tf32IsForGpus) {
  EXPECT_EQ(override_problem("runtime.precision=tf32"),
            "--set runtime.precision: tf32 does not apply with runtime.device cpu");
}

TEST_F(LoadConfig, NamesKeysThatDoNotApply) {
  EXPECT_EQ(override_problem("model.heads=4"), "--set model.heads: does not apply to model.kind mlp");
  EXPECT_EQ(override_problem("data.path=x"), "--set data.path: does not apply to data.kind synthetic");
  EXPECT_EQ(override_problem("training.optimizer.momentum=0.5"),
            "--set training.optimizer.momentum: does not apply to training.optimizer.kind adamw");
  EXPECT_EQ(problem("model:\n  kind: gpt\n  branches: 2\n"),
            "c.yaml:3: model.branches: does not apply to model.kind gpt");
}

TEST_F(LoadConfig, RefusesKeysThatTheRunWouldIgnore) {
  EXPECT_EQ(problem(minimal_mlp, {"runtime.window=5", "runtime.policy=lws"}),
            "--set runtime.window: does not apply to runtime.policy lws");
  EXPECT_EQ(problem(minimal_mlp, {"runtime.window=5", "schedule.dynamic=true"}),
            "--set runtime.window: does not apply with schedule.dynamic");
  EXPECT_EQ(problem(minimal_mlp, {"runtime.workers_per_core=5", "runtime.device=cuda"}),
            "--set runtime.workers_per_core: does not apply to runtime.device cuda");
  const std::string emulate = "runtime.emulate={F: 1ms, B: 1ms, W: 1ms}";
  for (const char* other : {"training.seed=2", "training.optimizer.learning_rate=1", "model.init=x",
                            "runtime.workers_per_core=3"}) {
    const std::string key = std::string(other).substr(0, std::string(other).find('='));
    EXPECT_EQ(problem(minimal_mlp, {emulate, other}),
              "--set " + key + ": does not apply with runtime.emulate");
  }
  EXPECT_EQ(problem(minimal_mlp, {emulate, "runtime.emulate.prefetch=false"}),
            "--set runtime.emulate.prefetch: does not apply with runtime.emulate.comm 0");
  EXPECT_FALSE(
      load(std::string(minimal_mlp) + "runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms, prefetch: false}}",
           {"runtime.emulate.comm=1ms"})
          .runtime.emulate->prefetch);
  EXPECT_EQ(problem(minimal_mlp, {"schedule.file=s.json", "schedule.plugin=x.so"}),
            "--set schedule.plugin: does not apply with schedule.file");
  EXPECT_EQ(problem(minimal_mlp, {emulate, "runtime.device=cuda"}),
            "--set runtime.device: cuda does not apply with runtime.emulate");
}

TEST_F(LoadConfig, EmulationReplacesTheNumbersOfTheFile) {
  const std::string text =
      "model: {kind: mlp, init: w.safetensors}\n"
      "training: {steps: 3, seed: 7, optimizer: {learning_rate: 0.1}}\n"
      "schedule: {name: gpipe, workers: 2}\n";
  const runtime::Config config = load(text, {"runtime.emulate={F: 1ms, B: 1ms, W: 1ms}"});
  EXPECT_EQ(config.training.seed, 1U);
  EXPECT_FALSE(config.model.init.has_value());
  EXPECT_EQ(problem(text + "runtime: {emulate: {F: 1ms, B: 1ms, W: 1ms}}\n"),
            "c.yaml:1: model.init: does not apply with runtime.emulate");
}

TEST_F(LoadConfig, NamesMissingKeys) {
  EXPECT_EQ(problem("data: {kind: text}"), "c.yaml: missing key 'model.kind'");
  EXPECT_EQ(problem("model: {kind: gpt}"), "c.yaml: missing key 'data.path'");
  EXPECT_EQ(problem("model: {kind: mlp}"), "c.yaml: missing key 'training.steps'");
  EXPECT_EQ(problem("model: {kind: mlp}\ntraining: {steps: 1}"), "c.yaml: missing key 'schedule.name'");
  EXPECT_EQ(problem("model: {kind: mlp}\ntraining: {steps: 1}\nschedule: {name: ddp}"),
            "c.yaml: missing key 'schedule.workers'");
  EXPECT_EQ(problem(minimal_mlp, {"runtime.emulate.comm=1ms"}), "c.yaml: missing key 'runtime.emulate.F'");
}

TEST_F(LoadConfig, NamesFilesThatAreNoConfiguration) {
  EXPECT_EQ(problem(""), "c.yaml: the configuration is empty");
  EXPECT_EQ(problem("# nothing\n"), "c.yaml: the configuration is empty");
  EXPECT_EQ(problem("- a\n"), "c.yaml: expected a map with model, data, training and schedule, got a list");
  EXPECT_THAT(problem("model: {kind: mlp\ntraining: ]\n"), ::testing::StartsWith("c.yaml:2: not YAML: "));
  EXPECT_EQ(problem("model: {kind: mlp}\n---\nmodel: {kind: gpt}\n"),
            "c.yaml:3: a second document, only one is expected");
  EXPECT_EQ(problem("model: {kind: mlp, kind: gpt}"), "c.yaml:1: key 'model.kind' is given twice");
  EXPECT_EQ(problem("model: {kind: mlp}\nmodel: {layers: 2}"), "c.yaml:2: key 'model' is given twice");
  EXPECT_EQ(problem("[a, b]: 3"), "c.yaml:1: a key must be a word, got a list");
  // A map that holds itself.
  EXPECT_EQ(problem("training: &t {optimizer: *t}"),
            "c.yaml:1: unknown key 'training.optimizer.optimizer' (did you mean 'training.optimizer'?)");
  std::filesystem::remove(file_);
  EXPECT_EQ(message_of([&] { load_config(file_, {}); }), file_.string() + ": No such file or directory");
  EXPECT_THROW(load_config(folder_.path(), {}), InputError);
}

TEST_F(LoadConfig, NamesMalformedOverrides) {
  EXPECT_EQ(override_problem("training.steps"),
            "--set training.steps: expected KEY=VALUE, such as training.steps=10");
  EXPECT_EQ(override_problem("=3"), "--set =3: expected KEY=VALUE, such as training.steps=10");
  EXPECT_THAT(override_problem("training.steps=[1"),
              ::testing::StartsWith("--set training.steps=[1: the value is not YAML: "));
}

}  // namespace
}  // namespace starpipe::cli
