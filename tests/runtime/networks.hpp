// SPDX-License-Identifier: Apache-2.0
// Small networks, data and schedules for the tests of the runtime, and a sequential run of the task graph
// without StarPU and MPI.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/data/make_dataset.hpp"
#include "plan/schedules/detached_parts.hpp"
#include "plan/simulate/reductions.hpp"
#include "runtime/engine/kernels.hpp"
#include "runtime/engine/task_graph.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/schedules/finer.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/rounds.hpp"

namespace starpipe::runtime::testing {

using Floats = std::vector<float>;

// ---- networks ----

/// `max_stages`: networks with the same number differ in their cuts only.
inline model::Network tiny_gpt(int stages, model::Precision precision = model::Precision::fp32,
                               int max_stages = 0, bool tied = false) {
  model::ModelConfig config;
  config.kind = "gpt";
  config.options["layers"] = std::max({4, stages - 2, max_stages - 2});
  config.options["hidden"] = 16;
  config.options["heads"] = 2;
  config.options["context"] = 16;
  config.options["tied"] = tied;
  config.precision = precision;
  return model::build_network(config, 1, stages);
}

/// A GPT whose head shares the embedding's table.
inline model::Network tied_gpt(int stages) { return tiny_gpt(stages, model::Precision::fp32, 0, true); }

/// A GPT whose half-blocks are cut into shards. `shards`: the numbers of the blocks, in turn. `vocabulary`:
/// the shards of embedding and head.
inline model::Network sharded_gpt(int stages, const std::vector<int>& shards,
                                  model::Precision precision = model::Precision::fp32, int vocabulary = 1) {
  model::ModelConfig config;
  config.kind = "gpt";
  const int layers = std::max(2, stages - 2);
  std::vector<int> of_blocks;
  for (int n = 0; n < layers; ++n) of_blocks.push_back(shards[index(n) % shards.size()]);
  config.options["layers"] = layers;
  config.options["hidden"] = 16;
  config.options["heads"] = 4;
  config.options["context"] = 16;
  config.options["tensor"] = std::move(of_blocks);
  config.vocabulary.shards = vocabulary;
  config.precision = precision;
  return model::build_network(config, 1, stages);
}

/// A schedule of the network's whole stages, with `each` workers for each of its workers. Shards of the
/// vocabulary run where there is time.
inline plan::Schedule sharded_schedule(plan::Schedule whole, const model::Network& network, int each) {
  if (whole.discipline() != plan::Discipline::ordered) whole = plan::ordered_as_simulated(whole, {});
  plan::Schedule sharded = plan::with_parts(whole, network.graph, network.parts, each);
  if (network.config.vocabulary.shards == 1) return sharded;
  return plan::with_detached_where_free(sharded, network.parts, {}, 1);
}

/// The named schedule, with a worker for each shard.
inline plan::Schedule sharded_schedule(const char* name, const model::Network& network, int workers,
                                       int microbatches) {
  const plan::StageGraph chain = plan::StageGraph::chain(network.whole_stages());
  const plan::ScheduleRequest request{.workers = workers, .microbatches = microbatches, .graph = chain};
  return sharded_schedule(plan::make_schedule(name, request), network, network.shards());
}

inline model::Network tiny_llama(int stages, model::Precision precision = model::Precision::fp32,
                                 bool tied = false) {
  model::ModelConfig config;
  config.kind = "llama";
  config.options["layers"] = std::max(2, stages - 2);
  config.options["hidden"] = 16;
  config.options["heads"] = 4;
  config.options["kv_heads"] = 2;
  config.options["intermediate"] = 12;
  config.options["tied"] = tied;
  config.options["context"] = 16;
  config.precision = precision;
  return model::build_network(config, 1, stages);
}

/// `branches` of stages and their join.
inline model::Network tiny_mlp(int stages, int branches = 1,
                               model::Precision precision = model::Precision::fp32) {
  model::ModelConfig config;
  config.kind = "mlp";
  config.options["layers"] = std::max(3, stages);
  config.options["hidden"] = 12;
  config.options["inputs"] = 4;
  config.options["outputs"] = 3;
  config.options["branches"] = branches;
  config.precision = precision;
  return model::build_network(config, 2, stages);
}

inline std::unique_ptr<model::Dataset> data_for(const model::Network& network) {
  const bool text = network.config.kind != "mlp";
  const model::DataConfig data{text ? "text" : "synthetic", text ? STARPIPE_TEST_TEXT : ""};
  return model::make_dataset(data, network.config, {.microbatch_size = network.microbatch_size}, 1);
}

inline std::vector<Floats> start_values(const model::Network& network) {
  std::vector<Floats> parameters;
  for (const model::ParameterSet& set : network.sets())
    parameters.push_back(model::initial_parameters(set.parameters, 1));
  return parameters;
}

/// A network of linear stages on any stage graph. With `bare`, the first stage that is not a source has no
/// parameters.
inline model::Network dag_network(const plan::StageGraph& graph, bool bare = false,
                                  model::Precision precision = model::Precision::fp32) {
  constexpr std::size_t rows = 3;
  constexpr std::size_t columns = 4;
  model::Network network;
  network.config.kind = "dag";
  network.config.precision = precision;
  network.graph = graph;
  for (int s = 0; s < graph.size(); ++s) {
    const std::size_t joined = std::max<std::size_t>(1, graph.pred(s).size());
    const bool sink = s == graph.sink();
    std::vector<model::StageOp> ops;
    if (bare && !sink && graph.pred(s).size() == 1) {
      bare = false;
    } else {
      const model::LayerSpec linear{"linear",
                                    "s" + std::to_string(s),
                                    rows,
                                    columns * joined,
                                    {{"outputs", static_cast<double>(columns)}}};
      ops.push_back({model::StageOp::Kind::layer, model::make_layer(linear, precision)});
    }
    if (!sink) {
      ops.push_back(
          {model::StageOp::Kind::layer, model::make_layer({"gelu", "g", rows, columns, {}}, precision)});
    }
    std::shared_ptr<const model::Loss> loss;
    if (sink) loss = model::make_loss("mse", rows, columns, precision);
    network.stages.emplace_back(std::move(ops), rows, std::vector<std::size_t>(joined, columns),
                                std::move(loss), precision);
  }
  return network;
}

/// Two towers of two stages, and their join. Each stage of the second tower shares the weights of the same
/// stage of the first one.
inline model::Network two_towers(model::Precision precision = model::Precision::fp32) {
  constexpr std::size_t rows = 3;
  constexpr std::size_t columns = 4;
  const auto stage = [&](const std::string& name, std::size_t inputs, bool sink, const std::string& shared) {
    const model::LayerSpec linear = {
        "linear", name, rows, columns * inputs, {{"outputs", double{columns}}, {"deviation", 0.5}}};
    std::vector<model::StageOp> ops = {
        {model::StageOp::Kind::layer, model::make_layer(linear, precision), shared}};
    if (!sink)
      ops.push_back(
          {model::StageOp::Kind::layer, model::make_layer({"gelu", "g", rows, columns, {}}, precision)});
    return model::Stage(std::move(ops), rows, std::vector<std::size_t>(inputs, columns),
                        sink ? model::make_loss("mse", rows, columns, precision) : nullptr, precision);
  };
  model::Network network;
  network.config.kind = "dag";
  network.config.precision = precision;
  network.graph = plan::StageGraph(5, {{0, 1}, {2, 3}, {1, 4}, {3, 4}});
  for (const char* tower : {"left", "right"}) {
    for (const char* part : {"first", "second"})
      network.stages.push_back(stage(std::string(tower) + "." + part, 1, false, part));
  }
  network.stages.push_back(stage("join", 2, true, ""));
  return network;
}

/// Random features and targets for a `dag_network`.
class Noise : public model::Dataset {
 public:
  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    fill(step, microbatch, branch, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    fill(step, microbatch, -1, out);
  }
  [[nodiscard]] std::vector<std::uint64_t> offsets(int /*step*/, int /*microbatch*/) const override {
    return {};
  }
  [[nodiscard]] std::string sample_word() const override { return "samples"; }
  [[nodiscard]] std::size_t samples_per_microbatch() const override { return 1; }

 private:
  static void fill(int step, int microbatch, int branch, std::span<float> out) {
    std::mt19937 bits(static_cast<unsigned>(step * 1000 + microbatch * 10 + branch + 1));
    for (float& value : out) value = static_cast<float>(bits() % 2000) / 1000.0F - 1.0F;
  }
};

// ---- schedules ----

/// The schedule with all its backward passes split into B and W, with W right behind B.
inline plan::Schedule split(const plan::Schedule& fused) {
  const auto whole = [fused](const plan::Job& job) {
    const auto same = fused.find(job);
    return same ? *same : *fused.find({job.stage, job.microbatch, plan::Pass::BW});
  };
  plan::ScheduleSpec spec;
  spec.name = fused.name() + "-split";
  spec.graph = fused.graph();
  spec.microbatches = fused.microbatches();
  spec.workers = fused.workers();
  spec.split_backward = [](int, int) { return true; };
  spec.placement = [=](const plan::Job& job) { return fused.placement(whole(job)); };
  spec.priority = [=](const plan::Job& job) {
    return std::int64_t{2} * fused.turn(whole(job)) + (job.pass == plan::Pass::W ? 1 : 0);
  };
  spec.discipline = fused.discipline();
  return plan::Schedule(spec);
}

/// F and B of a micro-batch on different workers, W on a third, and the weights on a fourth.
inline plan::Schedule scattered(const plan::StageGraph& graph, int workers, int microbatches,
                                bool split_backward) {
  const auto depth = graph.length();
  plan::ScheduleSpec spec;
  spec.name = "scattered";
  spec.graph = graph;
  spec.microbatches = microbatches;
  spec.workers = workers;
  if (split_backward) spec.split_backward = [](int, int) { return true; };
  spec.placement = [workers](const plan::Job& job) {
    const int pass = job.pass == plan::Pass::F ? 0 : job.pass == plan::Pass::W ? 3 : 2;
    return plan::Placement{.weights = (3 * job.stage + 1) % workers,
                           .compute = (job.stage + job.microbatch + pass) % workers};
  };
  spec.priority = [graph, depth](const plan::Job& job) {
    const int d = graph.depth(job.stage);
    const std::int64_t slot =
        job.pass == plan::Pass::F ? 2 * d : 2 * (2 * depth - 1 - d) + (job.pass == plan::Pass::W ? 1 : 0);
    return std::int64_t{4} * depth * job.microbatch + slot;
  };
  return plan::Schedule(spec);
}

/// Every registered schedule for `workers`, with as many stages and groups as it asks for.
struct NamedCase {
  std::string name;
  model::Network network;
  plan::Schedule schedule;
};

/// Returns a case per schedule; under a sanitizer, a case for every fifth schedule, others in each call of a
/// process. `make_network`: makes a network by its number of stages, with shards by its number of whole
/// stages.
inline std::vector<NamedCase> named_cases(
    int workers, int microbatches,
    const std::function<model::Network(int)>& make_network = [](int stages) { return tiny_gpt(stages); }) {
  static int calls = 0;
  int left_out = calls++ % round_stride;
  std::vector<NamedCase> cases;
  for (const plan::ScheduleEntry& entry : plan::schedule_entries()) {
    if (left_out-- > 0) continue;
    left_out = round_stride - 1;
    std::optional<NamedCase> found;
    std::string problem;
    for (const int stages : {workers, 2 * workers}) {
      for (const int groups : {0, workers % 2 == 0 ? 2 : 1}) {
        for (const int count : {microbatches, 2 * workers}) {
          if (found) continue;
          plan::ScheduleRequest request{.workers = workers, .microbatches = count};
          if (groups > 0) request.groups = groups;
          try {
            model::Network network = make_network(stages);
            request.graph = plan::StageGraph::chain(network.whole_stages());
            found.emplace(NamedCase{entry.name, network, plan::make_schedule(entry.name, request)});
          } catch (const InputError& error) {
            problem += error.what() + std::string("; ");
          }
        }
      }
    }
    // Bidirectional schedules pair a pipeline that goes up with one that goes down.
    const bool needs_even = problem.find("even number of workers") != std::string::npos;
    EXPECT_TRUE(found || (needs_even && workers % 2 != 0))
        << entry.name << ": no test case fits it: " << problem;
    if (found) cases.push_back(std::move(*found));
  }
  return cases;
}

/// For each worker, the most stages of one micro-batch that it computes: the smallest limit that can work.
inline std::vector<int> smallest_limits(const plan::Schedule& schedule) {
  std::vector<int> limits(index(schedule.workers()), 1);
  for (int b = 0; b < schedule.microbatches(); ++b) {
    std::vector<int> here(limits.size(), 0);
    for (int s = 0; s < schedule.stages(); ++s) {
      const auto w = index(schedule.compute(schedule.forward(s, b)));
      limits[w] = std::max(limits[w], ++here[w]);
    }
  }
  return limits;
}

inline plan::Costs costs_of(const model::Network& network) {
  plan::Costs costs;
  costs.sizes = network.sizes();
  costs.shared = network.shared_weights();
  return costs;
}

// ---- comparisons ----

inline double norm(std::span<const float> values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

/// Compares stage by stage: the norm of the difference relative to the norm, and the difference of each
/// element relative to the largest element.
inline void expect_close(const std::vector<Floats>& actual, const std::vector<Floats>& expected,
                         double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (std::size_t s = 0; s < expected.size(); ++s) {
    ASSERT_EQ(actual[s].size(), expected[s].size()) << what << " of stage " << s;
    double sum = 0;
    double largest = 0;
    for (std::size_t i = 0; i < expected[s].size(); ++i) {
      const double difference = static_cast<double>(actual[s][i]) - static_cast<double>(expected[s][i]);
      sum += difference * difference;
      largest = std::max(largest, std::abs(static_cast<double>(expected[s][i])));
    }
    EXPECT_LE(std::sqrt(sum), tolerance * norm(expected[s])) << what << " of stage " << s;
    for (std::size_t i = 0; i < expected[s].size(); ++i) {
      ASSERT_NEAR(actual[s][i], expected[s][i], tolerance * largest)
          << what << " of stage " << s << ", element " << i;
    }
  }
}

// ---- the task graph, run task by task ----

/// Runs a step's tasks sequentially in plain memory. Under the ordered discipline w and n fix the
/// order of each sum, so the engine must give the same bits on any number of ranks. Temporaries and
/// accumulators start as NaN, so that no task can rely on values of an earlier step.
class SequentialRun {
 public:
  SequentialRun(const plan::Schedule& schedule, const model::Network& network,
                const model::OptimizerConfig& optimizer, const std::vector<Floats>& parameters)
      : schedule_(schedule),
        network_(network),
        graph_(schedule, network, optimizer),
        context_{.graph = &graph_,
                 .network = &network,
                 .optimizer = &optimizer,
                 .loss_scale = 1.0F / static_cast<float>(schedule.microbatches())} {
    for (const Datum& datum : graph_.data()) {
      memory_.emplace_back(datum.size, 0.0F);
      const auto s = index(datum.stage);
      if (datum.kind == DataKind::master) memory_.back() = parameters[s];
      if (datum.kind == DataKind::weights)
        memory_.back() = model::rounded_weights(network.config.precision, parameters[s]);
    }
  }

  /// The losses by micro-batch.
  Floats step(int step, const model::Dataset& data) {
    context_.updates = step;
    context_.learning_rate =
        model::learning_rate(context_.optimizer->schedule, context_.optimizer->learning_rate, step);
    for (std::size_t d = 0; d < memory_.size(); ++d) {
      const Datum& datum = graph_.data()[d];
      if (is_temporary(datum.kind) || datum.kind == DataKind::weight_gradient ||
          datum.kind == DataKind::loss || datum.kind == DataKind::verdict) {
        std::ranges::fill(memory_[d], std::numeric_limits<float>::quiet_NaN());
      }
      if (datum.kind == DataKind::input)
        model::load_input(data, network_.stages[index(datum.stage)], step, datum.microbatch,
                          network_.source_index(datum.stage), memory_[d]);
      if (datum.kind == DataKind::target) data.target(step, datum.microbatch, memory_[d]);
    }
    for (const Task& task : graph_.tasks()) {
      std::vector<model::Memory> memory;
      for (const DataAccess& access : task.data) memory.emplace_back(memory_[access.datum]);
      Floats scratch(task.job ? scratch_size(schedule_, network_.stages[index(task.stage)], false) : 0);
      run_kernel(context_, task, memory, scratch);
    }
    Floats losses(index(schedule_.microbatches()));
    for (std::size_t d = 0; d < memory_.size(); ++d) {
      const Datum& datum = graph_.data()[d];
      if (datum.kind == DataKind::loss) losses[index(datum.microbatch)] = memory_[d][0];
    }
    return losses;
  }

  /// The norm of the gradient of the last step.
  [[nodiscard]] double gradient_norm() {
    const auto verdict = graph_.complete_verdict();
    return verdict ? Verdict(memory_[*verdict]).norm() : 0;
  }

  /// By set of parameters, from its first holder.
  [[nodiscard]] std::vector<Floats> parameters() const {
    const bool master = network_.config.precision == model::Precision::bf16;
    return of_first_holder(master ? DataKind::master : DataKind::weights);
  }
  [[nodiscard]] std::vector<Floats> gradients() const { return of_first_holder(DataKind::weight_gradient); }

  /// All copies of a stage's weights are equal, bit by bit.
  void expect_equal_replicas() const {
    for (int s = 0; std::cmp_less(s, graph_.parameters().size()); ++s) {
      const Floats* first = nullptr;
      for (std::size_t d = 0; d < memory_.size(); ++d) {
        if (graph_.data()[d].kind != DataKind::weights || graph_.data()[d].stage != s) continue;
        if (first == nullptr) first = &memory_[d];
        EXPECT_EQ(memory_[d], *first) << "stage " << s << " on worker " << graph_.data()[d].worker;
      }
    }
  }

  [[nodiscard]] const TaskGraph& graph() const { return graph_; }

 private:
  [[nodiscard]] std::vector<Floats> of_first_holder(DataKind kind) const {
    std::vector<Floats> all(graph_.parameters().size());
    for (int s = 0; std::cmp_less(s, all.size()); ++s) {
      const int holder = plan::weight_holders(schedule_, graph_.parameters()[index(s)].first_stage()).front();
      for (std::size_t d = 0; d < memory_.size(); ++d) {
        const Datum& datum = graph_.data()[d];
        if (datum.kind == kind && datum.stage == s && datum.worker == holder) all[index(s)] = memory_[d];
      }
    }
    return all;
  }

  const plan::Schedule& schedule_;
  const model::Network& network_;
  TaskGraph graph_;
  KernelContext context_;
  std::vector<Floats> memory_;
};

}  // namespace starpipe::runtime::testing
