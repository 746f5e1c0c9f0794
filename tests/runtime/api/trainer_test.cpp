// SPDX-License-Identifier: Apache-2.0
// The library as a program sees it: by its public headers alone.
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/api/small_training.hpp"
#include "starpipe/starpipe.hpp"
#include "support/folder.hpp"
#include "support/message_of.hpp"
#include "support/rank_reports.hpp"

namespace starpipe {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(Trainer, AStepIsAValue) {
  Runtime runtime;
  Trainer trainer(runtime, mlp());
  const Step first = trainer.step();
  const Step second = trainer.step();
  EXPECT_EQ(first.number, 0);
  EXPECT_EQ(second.number, 1);
  EXPECT_EQ(trainer.steps_done(), 2);
  ASSERT_EQ(first.losses.size(), 4U);
  EXPECT_TRUE(std::isfinite(first.loss.value()));
  EXPECT_GT(first.gradient_norm.value(), 0);
  EXPECT_GT(first.learning_rate, 0);
  EXPECT_FALSE(first.skipped);
  if (runtime.rank() != 0) {
    EXPECT_TRUE(first.jobs.empty());
    return;
  }
  EXPECT_EQ(first.jobs.size(), trainer.schedule().job_count());
  ASSERT_EQ(first.workers.size(), 2U);
  EXPECT_EQ(first.workers[1].received.activations.count, 4U);
  EXPECT_GT(first.workers[0].peak_stashes, 0);
}

TEST(Trainer, ItsScheduleMayBeTwoFunctions) {
  Runtime runtime;
  std::vector<double> named;
  {
    Trainer trainer(runtime, mlp());
    named = losses_of(trainer, 3);
  }
  Trainer trainer(runtime, mlp(), {.schedule = pipeline()});
  EXPECT_EQ(trainer.schedule().name(), "own");
  EXPECT_EQ(trainer.schedule().discipline(), plan::Discipline::ordered);
  const std::vector<double> own = losses_of(trainer, 3);
  for (std::size_t i = 0; i < named.size(); ++i) EXPECT_NEAR(own[i], named[i], 1e-5 * std::abs(named[i]));
}

TEST(Trainer, APlacementMayPartWeightsAndWork) {
  Runtime runtime;
  const plan::Schedule schedule = make_schedule(
      {.stages = 2, .workers = 2, .microbatches = 4},
      [](int s, int b, plan::Pass /*d*/) { return plan::Placement{.weights = s, .compute = b % 2}; },
      [](int s, int b, plan::Pass d) { return b * 10 + (d == plan::Pass::F ? s : 5 - s); });
  Trainer trainer(runtime, mlp(), {.schedule = schedule});
  EXPECT_TRUE(std::isfinite(trainer.step().loss.value()));
}

TEST(Trainer, RefusesAScheduleOfAnotherGraph) {
  Runtime runtime;
  const plan::Schedule schedule = make_schedule(
      {.stages = 9, .workers = 1, .microbatches = 1}, [](int, int, plan::Pass) { return 0; },
      [](int s, int, plan::Pass) { return s; });
  EXPECT_THAT(message_of<InputError>([&] { Trainer(runtime, mlp(), {.schedule = schedule}); }),
              HasSubstr("schedule.stages: 9"));
}

TEST(Trainer, DataAreOfAnyClass) {
  Runtime runtime;
  Trainer trainer(runtime, mlp(), {.data = std::make_shared<Circle>()});
  const std::vector<double> losses = losses_of(trainer, 4);
  EXPECT_LT(losses.back(), 10);
  EXPECT_NE(losses[0], losses[1]);
}

TEST(Trainer, DataStandInPlaceOfTheKeysOfData) {
  Runtime runtime;
  Config config = mlp(1);
  config.data = {};  // text, which an mlp does not read
  Trainer trainer(runtime, config, {.data = std::make_shared<Circle>()});
  EXPECT_TRUE(std::isfinite(trainer.step().loss.value()));
}

// Otherwise it would evaluate data that the program never chose.
TEST(Trainer, EvaluatesItsOwnDataOnly) {
  Runtime runtime;
  Config config = mlp();
  config.evaluate.every = 2;
  EXPECT_THAT(message_of<InputError>([&] { Trainer(runtime, config, {.data = std::make_shared<Circle>()}); }),
              HasSubstr("TrainerParts::validation: is needed"));
}

TEST(Trainer, RefusesDataOfSomeRanksOnly) {
  Runtime runtime;
  if (runtime.ranks() == 1) return;
  TrainerParts parts;
  if (runtime.rank() == 0) parts.data = std::make_shared<Circle>();
  EXPECT_THAT(message_of<InputError>([&] { Trainer(runtime, mlp(), parts); }),
              HasSubstr("TrainerParts::data: rank 0 has a value, rank 1 has no value"));
}

TEST(Trainer, RefusesNetworksThatCannotWork) {
  Runtime runtime;
  const auto refused = [&](auto change) {
    TrainerParts parts;
    parts.data = std::make_shared<Circle>();
    parts.network = [=](const model::ModelConfig&, std::size_t rows) {
      model::UnitGraph graph;
      graph.rows = rows;
      graph.branch_inputs = columns;
      graph.loss = model::make_loss("mse", rows, 2);
      change(graph);
      return graph;
    };
    return message_of<InputError>([&] { Trainer(runtime, mlp(), parts); });
  };
  EXPECT_THAT(refused([](model::UnitGraph&) {}), HasSubstr("model.kind own: the network has no units"));
  EXPECT_THAT(refused([](model::UnitGraph& graph) {
                graph.branches = {{model::Unit{.name = "a", .ops = {}}}};
                graph.loss = nullptr;
              }),
              HasSubstr("model.kind own: the network has no loss"));
  EXPECT_THAT(refused([](model::UnitGraph&) {
                static_cast<void>(
                    model::make_layer({.kind = "conv", .name = "c", .rows = 1, .columns = 1, .options = {}}));
              }),
              HasSubstr("model.kind own: layer c: unknown kind conv"));
}

TEST(Trainer, AnErrorOfOneRanksDataIsThrownOnAll) {
  Runtime runtime;
  for (const bool with_input_error : {true, false}) {
    const bool breaks = runtime.rank() == 0;  // it has the stage that reads the input
    Trainer trainer(runtime, mlp(), {.data = std::make_shared<Circle>(breaks, with_input_error)});
    trainer.step();
    EXPECT_EQ(message_of<RunFailure>([&] { trainer.step(); }),
              with_input_error ? "step 2: circle.txt: is cut off" : "step 2: no circle");
    EXPECT_THROW(trainer.step(), std::logic_error);
    EXPECT_THROW(trainer.weights(), std::logic_error);  // they are of no use
    EXPECT_THROW(trainer.evaluate(), std::logic_error);
  }
}

TEST(Trainer, RefusesACheckpointOfAnEmulatedRun) {
  Runtime runtime;
  Config config = mlp();
  config.runtime.emulate = {.F = {1e-3}, .B = {1e-3}, .W = {1e-3}};
  config.checkpoint.folder = "never-made";
  EXPECT_EQ(message_of<InputError>([&] { Trainer(runtime, config); }),
            "checkpoint.folder: does not apply with runtime.emulate");
}

TEST(Trainer, TheNetworkMayBeAFunction) {
  Runtime runtime;
  TrainerParts parts;
  parts.data = std::make_shared<Circle>();
  parts.network = [](const model::ModelConfig& config, std::size_t microbatch_size) {
    model::UnitGraph graph;
    graph.rows = microbatch_size;
    graph.branch_inputs = columns;
    graph.branches.emplace_back();
    for (const int outputs : {5, 2}) {
      const int inputs = outputs == 5 ? columns : 5;
      const std::string name = outputs == 5 ? "first" : "last";
      graph.branches.front().push_back({.name = name,
                                        .ops = {model::layer_op({.kind = "linear",
                                                                 .name = name,
                                                                 .rows = microbatch_size,
                                                                 .columns = static_cast<std::size_t>(inputs),
                                                                 .options = {{"outputs", outputs}}},
                                                                config.precision)}});
    }
    graph.loss = model::make_loss("mse", microbatch_size, 2, config.precision);
    return graph;
  };
  Trainer trainer(runtime, mlp(), parts);
  EXPECT_EQ(trainer.network().parameter_count(), 4U * 5 + 5 + 5 * 2 + 2);
  EXPECT_TRUE(std::isfinite(trainer.step().loss.value()));
  EXPECT_THROW(Trainer(runtime, mlp(), parts), std::logic_error);  // a Runtime has one at a time
}

TEST(Trainer, StartsFromGivenWeights) {
  Runtime runtime;
  std::vector<std::vector<float>> trained;
  {
    Trainer trainer(runtime, mlp());
    trainer.step();
    trained = trainer.weights();
  }
  std::vector<int> sizes;
  for (const std::vector<float>& set : trained) sizes.push_back(static_cast<int>(set.size()));
  int count = static_cast<int>(sizes.size());
  MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
  sizes.resize(static_cast<std::size_t>(count));
  MPI_Bcast(sizes.data(), count, MPI_INT, 0, MPI_COMM_WORLD);
  trained.resize(static_cast<std::size_t>(count));
  for (std::size_t s = 0; s < trained.size(); ++s) {
    trained[s].resize(static_cast<std::size_t>(sizes[s]));
    MPI_Bcast(trained[s].data(), sizes[s], MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
  Trainer trainer(runtime, mlp(), {.weights = trained});
  const std::vector<std::vector<float>> weights = trainer.weights();
  EXPECT_EQ(weights, runtime.rank() == 0 ? trained : std::vector<std::vector<float>>());
}

TEST(Trainer, GivesTheGradientsOfTheLastStep) {
  Runtime runtime;
  Config config = mlp();
  config.training.optimizer = {.kind = "sgd", .learning_rate = 0.5, .weight_decay = 0};
  Trainer trainer(runtime, config);
  EXPECT_THROW(trainer.gradients(), std::logic_error);  // there are none yet
  std::vector<std::vector<float>> expected = trainer.weights();
  for (int number = 0; number < 2; ++number) {
    const Step step = trainer.step();
    EXPECT_LE(step.submission, step.seconds);
    const std::vector<std::vector<float>> gradients = trainer.gradients();
    const std::vector<std::vector<float>> weights = trainer.weights();
    ASSERT_EQ(gradients.size(), runtime.rank() == 0 ? 2U : 0U);
    for (std::size_t s = 0; s < gradients.size(); ++s) {
      for (std::size_t i = 0; i < expected[s].size(); ++i) expected[s][i] -= 0.5F * gradients[s][i];
      EXPECT_THAT(weights[s], ::testing::Pointwise(::testing::FloatNear(1e-6F), expected[s]));
    }
    expected = weights;
  }
}

TEST(Trainer, RefusesWeightsOfAnotherNetwork) {
  Runtime runtime;
  EXPECT_THAT(message_of<InputError>([&] { Trainer(runtime, mlp(), {.weights = {{{1.0F}}}}); }),
              HasSubstr("TrainerParts::weights"));
}

TEST(Trainer, RefusesConfigurationsThatDiffer) {
  Runtime runtime;
  if (runtime.ranks() == 1) return;
  Config config = mlp();
  config.training.seed = static_cast<std::uint64_t>(runtime.rank()) + 1;
  EXPECT_THAT(message_of<InputError>([&] { Trainer(runtime, config); }),
              HasSubstr("training.seed: rank 0 has 1, rank 1 has 2"));
}

TEST(Trainer, CallsBackAndEvaluates) {
  Runtime runtime;
  Config config = mlp(4);
  config.evaluate.every = 2;
  Trainer trainer(runtime, config);
  std::vector<int> steps;
  std::vector<int> evaluations;
  trainer.on_step([&](const Step& step) { steps.push_back(step.number); });
  trainer.on_evaluation([&](const Evaluation& done) { evaluations.push_back(done.steps); });
  EXPECT_TRUE(trainer.run());
  EXPECT_EQ(steps, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(evaluations, (std::vector{0, 2, 4}));
  EXPECT_EQ(trainer.evaluate().losses.size(), 4U);
  EXPECT_THROW(trainer.step(), std::logic_error);  // all are done
}

TEST(Trainer, HasNothingToEvaluate) {
  Runtime runtime;
  Trainer trainer(runtime, mlp());
  EXPECT_THAT(message_of<InputError>([&] { trainer.evaluate(); }), HasSubstr("data.validation"));
}

TEST(Trainer, ValidationDataAreOfAnyClass) {
  Runtime runtime;
  Trainer trainer(runtime, mlp(),
                  {.data = std::make_shared<Circle>(), .validation = std::make_shared<Circle>()});
  const Evaluation before = trainer.evaluate();
  EXPECT_EQ(before.steps, 0);
  EXPECT_EQ(before.loss, trainer.evaluate().loss);
  const Step step = trainer.step();  // reads the same micro-batches as the evaluation
  EXPECT_NEAR(step.loss.value(), before.loss, 1e-6);
}

// A folder that all ranks know and rank 0 makes.
class SharedFolder {
 public:
  SharedFolder() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::array<char, 256> name{};
    if (rank == 0) {
      made_.emplace();
      made_->path().string().copy(name.data(), name.size() - 1);
    }
    MPI_Bcast(name.data(), static_cast<int>(name.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    path_ = name.data();
  }
  ~SharedFolder() { MPI_Barrier(MPI_COMM_WORLD); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  std::optional<Folder> made_;
  fs::path path_;
};

TEST(Trainer, ResumesWithTheSameBits) {
  std::vector<std::string> lines;
  Runtime runtime(MPI_COMM_WORLD, {.on_message = [&](const std::string& line) { lines.push_back(line); }});
  const SharedFolder folder;
  std::vector<std::vector<float>> whole;
  {
    Trainer trainer(runtime, mlp(6));
    trainer.run();
    whole = trainer.weights();
  }
  Config config = mlp(6);
  config.checkpoint.folder = folder / "checkpoints";
  {
    Trainer trainer(runtime, config);
    EXPECT_FALSE(trainer.resume());
    for (int i = 0; i < 3; ++i) trainer.step();
    trainer.save();
    trainer.step();  // lost
  }
  EXPECT_THAT(message_of<InputError>([&] {
                Trainer trainer(runtime, config);
                trainer.step();
              }),
              HasSubstr("has checkpoints"));
  Trainer trainer(runtime, config);
  EXPECT_TRUE(trainer.resume());
  EXPECT_EQ(trainer.steps_done(), 3);
  EXPECT_TRUE(trainer.run());
  EXPECT_EQ(trainer.weights(), whole);
  if (runtime.rank() == 0) {
    EXPECT_THAT(lines, ::testing::Contains(HasSubstr("continues after step 3 of 6")));
  } else {
    EXPECT_TRUE(lines.empty());
  }
  trainer.save_weights(folder / "weights.safetensors");
  if (runtime.rank() == 0) {
    EXPECT_GT(fs::file_size(folder / "weights.safetensors"), 0U);
  }
}

TEST(Trainer, WritesMetricsWhileItRuns) {
  Runtime runtime;
  const SharedFolder folder;
  Trainer trainer(runtime, mlp(), {.metrics = folder / "metrics.jsonl"});
  trainer.step();
  trainer.step();
  if (runtime.rank() == 0) {
    EXPECT_GT(fs::file_size(folder / "metrics.jsonl"), 0U);
  }
}

TEST(Trainer, PrintsNothing) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  {
    Runtime runtime;
    Config config = mlp();
    config.evaluate.every = 1;
    Trainer trainer(runtime, config);
    trainer.run();
    trainer.report();
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace starpipe

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const starpipe::MpiLibrary library;
  starpipe::report_on_rank_0(MPI_COMM_WORLD);
  return starpipe::run_all_tests(MPI_COMM_WORLD);
}
