// SPDX-License-Identifier: Apache-2.0
// Evaluations: before, between and after the steps of a training run, and alone. Collective, like
// engine_test.cpp.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/reference.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/report/report.hpp"
#include "runtime/started_mpi.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "support/datasets.hpp"
#include "support/floats.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/network_schedules.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Schedule;

constexpr int workers = 4;

RuntimeConfig config_of(const std::string& policy, int window = 10'000) {
  RuntimeConfig config;
  config.policy = policy;
  config.timeout = 1000;
  config.window = window;
  config.workers_per_core = workers;
  return config;
}

std::unique_ptr<Session> session_with(const RuntimeConfig& config) {
  const WorkerMap map(workers, mpi->ranks());
  return std::make_unique<Session>(*mpi, map, share_cores(*mpi, map, config), policy_of(config));
}

std::unique_ptr<model::Dataset> validation_for(const model::Network& network) {
  const bool text = network.config.kind != "mlp";
  const model::DataConfig data{.kind = text ? "text" : "synthetic",
                               .validation = text ? STARPIPE_TEST_TEXT : ""};
  return model::make_validation(data, network.config, {.microbatch_size = network.microbatch_size}, 1);
}

/// The results of a run of two steps.
struct Outcome {
  std::vector<Floats> losses;                 // of the steps
  std::vector<EvaluationResult> evaluations;  // before the first step and after each
  std::vector<Floats> parameters;             // on rank 0
  std::uint64_t sent = 0;                     // by all ranks
  std::uint64_t predicted = 0;
};

Outcome train(const Session& session, const Schedule& schedule, const model::Network& network,
              const RuntimeConfig& config, int evaluated) {
  const auto data = data_for(network);
  const auto validation = validation_for(network);
  Outcome run;
  Engine engine(session, schedule, network, adamw, model::given_values(start_values(network)), config,
                nullptr, NonFinitePolicy::stop, evaluated);
  const std::uint64_t before = engine.bytes_sent_by_starpu();
  const auto evaluate = [&](int steps) {
    if (evaluated > 0) run.evaluations.push_back(engine.evaluate(steps, *validation));
  };
  evaluate(0);
  for (int step = 0; step < 2; ++step) {
    run.losses.push_back(engine.run_step(step, *data).losses);
    evaluate(step + 1);
  }
  const std::uint64_t sent = engine.bytes_sent_by_starpu() - before;
  MPI_Allreduce(&sent, &run.sent, 1, MPI_UINT64_T, MPI_SUM, mpi->comm());
  run.predicted = 2 * bytes_between_ranks(engine.graph(), session.map());
  if (evaluated > 0) run.predicted += 3 * bytes_between_ranks(*engine.evaluation_graph(), session.map());
  run.parameters = engine.parameters();
  return run;
}

/// The mean loss of the first micro-batches of the validation data.
double reference_loss(const model::Network& network, const std::vector<Floats>& parameters,
                      int microbatches) {
  return model::train_reference(network, *validation_for(network), {.kind = "sgd"}, parameters, microbatches,
                                1)
      .losses[0];
}

void expect_mean(const EvaluationResult& result, int microbatches) {
  ASSERT_EQ(result.losses.size(), index(microbatches));
  double sum = 0;
  for (const float loss : result.losses) sum += static_cast<double>(loss);
  EXPECT_EQ(result.loss, sum / microbatches);
}

// A file of 5 sequences in micro-batches of 2: each sequence counts once.
TEST(Evaluation, OfAFileThatDoesNotFillItsMicrobatches) {
  const RuntimeConfig config = config_of("starpipe");
  const auto session = session_with(config);
  const model::ModelConfig gpt = small("gpt", {{"hidden", 8}, {"context", 4}, {"vocabulary", 256}});
  const Folder folder;  // of each rank, with the same text
  const model::DataConfig data{.kind = "text", .validation = folder.write("t", "the quick brown foxes")};
  const auto evaluate = [&](int size, int microbatches) {
    const model::Network network = model::build_network(gpt, size, workers);
    const auto validation = model::make_validation(data, gpt, {.microbatch_size = size}, 1);
    const auto evaluated = static_cast<int>(validation->evaluated(microbatches).counts.size());
    Evaluator evaluator(*session, named("1f1b", workers, 4), network,
                        model::given_values(start_values(network)), config, evaluated);
    return evaluator.run(*validation);
  };
  const EvaluationResult one_by_one = evaluate(1, 5);
  ASSERT_EQ(one_by_one.losses.size(), 5U);
  for (const int asked : {3, 4, 8}) {
    const EvaluationResult by_two = evaluate(2, asked);
    EXPECT_EQ(by_two.losses.size(), 3U);
    EXPECT_NEAR(by_two.loss, one_by_one.loss, 1e-6);
  }
  EXPECT_NEAR(evaluate(3, 2).loss, one_by_one.loss, 1e-6);
  EXPECT_EQ(evaluate(2, 2).losses.size(), 2U);
}

// Evaluates a number of micro-batches that is not a multiple of the schedule's. The training has the same
// bits with and without evaluations, and evaluations have the same bits under every schedule of one network.
TEST(Evaluation, OfEveryNamedSchedule) {
  const RuntimeConfig config = config_of("starpipe");
  const auto session = session_with(config);
  std::map<int, Floats> seen;  // losses before the first step, by number of stages
  for (const NamedCase& c : named_cases(workers, 4)) {
    SCOPED_TRACE(c.schedule.name());
    const int microbatches = c.schedule.microbatches() * 2 + 3;
    const Outcome plain = train(*session, c.schedule, c.network, config, 0);
    const Outcome run = train(*session, c.schedule, c.network, config, microbatches);
    EXPECT_EQ(run.losses, plain.losses);
    EXPECT_EQ(run.parameters, plain.parameters);
    EXPECT_EQ(run.sent, run.predicted);
    for (const EvaluationResult& result : run.evaluations) expect_mean(result, microbatches);
    const double expected = reference_loss(c.network, start_values(c.network), microbatches);
    EXPECT_NEAR(run.evaluations[0].loss, expected, 1e-6 * expected);
    EXPECT_NE(run.evaluations[1].loss, run.evaluations[0].loss);
    if (mpi->rank() == 0) {
      const double after = reference_loss(c.network, run.parameters, microbatches);
      EXPECT_NEAR(run.evaluations[2].loss, after, 1e-6 * after);
    }
    Floats first(run.evaluations[0].losses.begin(), run.evaluations[0].losses.begin() + 11);
    const auto [known, is_new] = seen.try_emplace(c.schedule.stages(), first);
    if (!is_new) {
      EXPECT_EQ(first, known->second);
    }
  }
}

TEST(Evaluation, OfOneMicrobatch) {
  const RuntimeConfig config = config_of("starpipe");
  const auto session = session_with(config);
  const model::Network network = tiny_gpt(workers);
  const Schedule schedule = plan::make_schedule("1f1b", {.workers = workers, .microbatches = 6});
  const Outcome run = train(*session, schedule, network, config, 1);
  expect_mean(run.evaluations[2], 1);
}

// Few micro-batches read the table of a tied model on few of the workers that hold it.
TEST(Evaluation, OfFewMicrobatchesOfATiedModel) {
  const RuntimeConfig config = config_of("starpipe");
  const auto session = session_with(config);
  const model::Network network = tiny_gpt(workers, model::Precision::fp32, 0, true);
  plan::ScheduleSpec spec;
  spec.graph = network.graph;
  spec.microbatches = workers;
  spec.workers = workers;
  spec.placement = [](const plan::Job& job) {
    const int worker = (job.stage + job.microbatch) % workers;
    return plan::Placement{.weights = worker, .compute = worker};
  };
  spec.priority = [](const plan::Job& job) {
    return 100 * job.microbatch + (job.pass == plan::Pass::F ? job.stage : 10 - job.stage);
  };
  const Schedule schedule(spec);
  for (const int microbatches : {1, 2, 3}) {
    SCOPED_TRACE(microbatches);
    const Outcome run = train(*session, schedule, network, config, microbatches);
    const double expected = reference_loss(network, start_values(network), microbatches);
    EXPECT_NEAR(run.evaluations[0].loss, expected, 1e-6 * expected);
    EXPECT_EQ(run.sent, run.predicted);
  }
}

// Other ways to run a step: recomputation, bf16, splits of the data over branches, a choice among ready jobs,
// few tasks in flight.
TEST(Evaluation, OfOtherRuns) {
  const RuntimeConfig few = config_of("starpipe", 2);
  const auto session = session_with(few);
  const model::Network gpt = tiny_gpt(workers);
  const model::Network bf16 = tiny_gpt(workers, model::Precision::bf16);
  const model::Network tree = tiny_mlp(5, 2);
  const model::Network tied = tiny_gpt(workers, model::Precision::fp32, 0, true);
  const model::Network tied_bf16 = tiny_llama(workers, model::Precision::bf16, true);
  const Schedule named = plan::make_schedule("1f1b", {.workers = workers, .microbatches = 3});
  const Schedule ddp = plan::make_schedule("ddp", {.workers = workers, .microbatches = 4});
  const Schedule fsdp = plan::make_schedule("fsdp", {.workers = workers, .microbatches = 4});
  const Schedule branches = scattered(tree.graph, workers, 5, true);
  const struct {
    const char* name;
    Schedule schedule;
    const model::Network& network;
  } runs[] = {{"recomputing", named.with_recomputation(), gpt},
              {"bf16", named, bf16},
              {"bf16, copies of weights", fsdp, bf16},
              {"tied", named, tied},
              {"tied, every worker holds all", ddp, tied},
              {"tied, copies of weights", fsdp, tied},
              {"tied, any worker", scattered(tied.graph, workers, 5, true), tied},
              {"tied, bf16", fsdp, tied_bf16},
              {"branches", branches, tree},
              {"branches, recomputing", branches.with_recomputation(), tree},
              {"greedy", named.with(plan::Discipline::greedy), gpt},
              {"greedy branches", branches.with(plan::Discipline::greedy), tree}};
  for (const auto& [name, schedule, network] : runs) {
    SCOPED_TRACE(name);
    const Outcome run = train(*session, schedule, network, few, 40);
    const double expected = reference_loss(network, start_values(network), 40);
    EXPECT_NEAR(run.evaluations[0].loss, expected, 1e-6 * expected);
    if (mpi->rank() == 0) {
      const double after = reference_loss(network, run.parameters, 40);
      EXPECT_NEAR(run.evaluations[2].loss, after, 1e-6 * after);
    }
    if (schedule.discipline() != plan::Discipline::ordered) continue;
    const Outcome plain = train(*session, schedule, network, few, 0);
    EXPECT_EQ(run.losses, plain.losses);
    EXPECT_EQ(run.parameters, plain.parameters);
  }
}

// StarPU's policies choose workers and order; `worker-order` counts the tasks of a worker over steps and
// evaluations.
TEST(Evaluation, UnderOtherPolicies) {
  const model::Network network = tiny_gpt(workers);
  const Schedule schedule = plan::make_schedule("1f1b", {.workers = workers, .microbatches = 4});
  const double expected = reference_loss(network, start_values(network), 10);
  for (const char* policy : {"lws", "on-worker", "worker-order"}) {
    SCOPED_TRACE(policy);
    const RuntimeConfig config = config_of(policy);
    const auto session = session_with(config);
    const Outcome run = train(*session, schedule, network, config, 10);
    EXPECT_NEAR(run.evaluations[0].loss, expected, 1e-6 * expected);
    EXPECT_LT(run.evaluations[2].loss, run.evaluations[0].loss);
    EXPECT_EQ(run.sent, run.predicted);
  }
}

TEST(Evaluation, AloneHasTheSameBits) {
  const RuntimeConfig config = config_of("starpipe");
  const auto session = session_with(config);
  for (const auto precision : {model::Precision::fp32, model::Precision::bf16}) {
    const model::Network network = tiny_gpt(workers, precision);
    const auto validation = validation_for(network);
    for (const char* name : {"1f1b", "fsdp", "ddp"}) {
      SCOPED_TRACE(name);
      const Schedule schedule = plan::make_schedule(name, {.workers = workers, .microbatches = 4});
      const Outcome run = train(*session, schedule, network, config, 7);
      const std::size_t before = starpu_memory_get_used(STARPU_MAIN_RAM);
      {
        Evaluator evaluator(*session, schedule, network, model::given_values(start_values(network)), config,
                            7);
        EXPECT_EQ(evaluator.run(*validation).losses, run.evaluations[0].losses);
        EXPECT_EQ(evaluator.run(*validation).losses, run.evaluations[0].losses) << "again";
      }
      EXPECT_EQ(starpu_memory_get_used(STARPU_MAIN_RAM), before);
    }
  }
}

// No stash, no gradient; and a source waits for the loss of an earlier micro-batch, so that activations do
// not pile up behind a slow worker.
TEST(Evaluation, HoldsWeightsAndSomeActivations) {
  const model::Network network = tiny_gpt(workers);
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = workers, .microbatches = 2});
  const Schedule forward = plan::forward_passes(schedule, 100);
  const TaskGraph graph = TaskGraph::evaluation(schedule, forward, network);
  int waits = 0;
  for (const Task& task : graph.tasks()) {
    EXPECT_EQ(task.kind, TaskKind::F);
    for (const DataAccess& access : task.data) {
      const Datum& datum = graph.data()[access.datum];
      if (datum.kind != DataKind::loss || access.access != Access::read) continue;
      ++waits;
      EXPECT_EQ(datum.microbatch, forward.job(*task.job).microbatch - 2 * workers);
    }
  }
  EXPECT_EQ(waits, 100 - 2 * workers);
  for (const Datum& datum : graph.data()) {
    const bool held = datum.kind == DataKind::weights || datum.kind == DataKind::input ||
                      datum.kind == DataKind::target || datum.kind == DataKind::loss ||
                      datum.kind == DataKind::activation;
    EXPECT_TRUE(held) << to_string(datum.kind);
  }
}

/// Data whose micro-batch 3 cannot be read.
class Unreadable final : public OtherData {
 public:
  using OtherData::OtherData;
  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    if (microbatch == 3) throw InputError("a file");
    OtherData::input(step, microbatch, branch, out);
  }
};

// All ranks end together.
TEST(Evaluation, FailuresNameTheirPlace) {
  const RuntimeConfig config = config_of("starpipe");
  const auto session = session_with(config);
  const model::Network network = tiny_mlp(workers);
  const auto data = data_for(network);
  const auto validation = validation_for(network);
  const Unreadable unreadable(*validation);
  const Schedule schedule = plan::make_schedule("1f1b", {.workers = workers, .microbatches = 4});
  const auto failure = [&](std::vector<Floats> parameters, const model::Dataset& evaluated) {
    return message_of<RunFailure>([&] {
      Engine engine(*session, schedule, network, adamw, model::given_values(parameters), config, nullptr,
                    NonFinitePolicy::stop, 5);
      engine.run_step(0, *data);
      engine.evaluate(1, evaluated);
    });
  };
  EXPECT_EQ(failure(start_values(network), *validation), "");
  EXPECT_EQ(failure(start_values(network), unreadable), "the evaluation after step 1: a file");
  std::vector<Floats> bad = start_values(network);
  bad.back().back() = std::numeric_limits<float>::quiet_NaN();
  Evaluator evaluator(*session, schedule, network, model::given_values(bad), config, 5);
  const EvaluationResult result = evaluator.run(*validation);
  EXPECT_EQ(message_of<RunFailure>([&] { require_finite_losses(result, std::nullopt); }),
            "the evaluation, micro-batch 0: the loss is infinity or NaN (training.nonfinite: stop)");
}

}  // namespace
}  // namespace starpipe::runtime
