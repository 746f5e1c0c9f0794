// SPDX-License-Identifier: Apache-2.0
// Whole networks: the reference trainer, its independence of the cuts, and GPT-2 in NumPy.
#include "model/reference.hpp"

#include <cmath>
#include <sstream>

#include <cblas.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/data/make_dataset.hpp"
#include "model/gradients.hpp"
#include "model/weights.hpp"
#include "support/floats.hpp"
#include "support/folder.hpp"
#include "support/networks.hpp"
#include "support/shell.hpp"

namespace starpipe::model {
namespace {

using namespace testing;

const DataConfig text_data = {"text", STARPIPE_TEST_TEXT};
const DataConfig synthetic_data = {"synthetic", ""};

ModelConfig trained_gpt() {
  return small("gpt", {{"layers", 3}, {"hidden", 32}, {"heads", 4}, {"context", 24}});
}

ModelConfig trained_mlp(int branches) {
  return small("mlp", {{"layers", 2}, {"hidden", 32}, {"inputs", 8}, {"outputs", 2}, {"branches", branches}});
}

ReferenceRun train_on(const Network& network, const DataConfig& data, int microbatches, int steps,
                      const OptimizerConfig& optimizer = {}) {
  openblas_set_num_threads(1);
  const auto dataset = make_dataset(data, network.config, {microbatches, network.microbatch_size}, 1);
  return train_reference(network, *dataset, optimizer, start_parameters(network, 1), microbatches, steps);
}

void expect_close(const Floats& a, const Floats& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  double difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += std::pow(static_cast<double>(a[i] - b[i]), 2);
  EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(dot(b, b)));
}

TEST(Reference, CutsOfGptDoNotMatter) {
  const ReferenceRun whole = train_on(build_network(trained_gpt(), 2, 1), text_data, 3, 3);
  for (const auto& [stages, cuts] : std::vector<std::pair<int, std::vector<int>>>{
           {2, {}}, {4, {}}, {5, {}}, {2, {4}}, {3, {1, 2}}, {3, {3, 4}}}) {
    const ReferenceRun cut = train_on(build_network(trained_gpt(), 2, stages, cuts), text_data, 3, 3);
    ASSERT_EQ(cut.losses.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(cut.losses[i], whole.losses[i], 1e-6);
    expect_close(joined(cut.gradients), joined(whole.gradients), 1e-6);
    expect_close(joined(cut.parameters), joined(whole.parameters), 1e-6);
  }
}

TEST(Reference, CutsOfMlpDoNotMatter) {
  for (const int branches : {1, 2}) {
    const int max = branches == 1 ? 3 : 5;
    const ReferenceRun few =
        train_on(build_network(trained_mlp(branches), 4, branches == 1 ? 1 : 3), synthetic_data, 2, 3);
    const ReferenceRun many = train_on(build_network(trained_mlp(branches), 4, max), synthetic_data, 2, 3);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(few.losses[i], many.losses[i], 1e-6);
    expect_close(joined(few.gradients), joined(many.gradients), 1e-6);
  }
}

TEST(Reference, GradientIsTheMeanOverMicrobatches) {
  // Compares the gradient of the objective, the mean loss over the micro-batches, with finite differences
  // over the whole network.
  const Network network = build_network(trained_mlp(2), 4, 5);
  const auto data = make_dataset(synthetic_data, network.config, {2, 4}, 1);
  OptimizerConfig still;
  still.learning_rate = 0;
  still.weight_decay = 0;
  const auto start = start_parameters(network, 1);
  const ReferenceRun run = train_reference(network, *data, still, start, 3, 1);
  EXPECT_EQ(run.parameters, start);
  for (std::size_t s = 0; s < start.size(); ++s) {
    const auto loss = [&](const Floats& p) {
      auto parameters = start;
      parameters[s] = p;
      return train_reference(network, *data, still, parameters, 3, 1).losses[0];
    };
    expect_gradient(loss, start[s], run.gradients[s], 0, start[s].size(), "stage " + std::to_string(s), 2e-3,
                    2e-2);
  }
}

TEST(Reference, RunsAreEqualToTheBit) {
  const Network network = build_network(trained_gpt(), 2, 3);
  const ReferenceRun a = train_on(network, text_data, 2, 3);
  const ReferenceRun b = train_on(network, text_data, 2, 3);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.parameters, b.parameters);
  EXPECT_EQ(a.gradients, b.gradients);
}

TEST(Reference, GptStartsAtTheLossOfChanceAndLearns) {
  OptimizerConfig optimizer;
  optimizer.learning_rate = 3e-3;
  const ReferenceRun run = train_on(build_network(trained_gpt(), 4, 2), text_data, 2, 60, optimizer);
  EXPECT_NEAR(run.losses[0], std::log(256), 0.05 * std::log(256));
  EXPECT_LT(run.losses.back(), 3.3);  // the entropy of single letters is about 3
}

TEST(Reference, GptLearnsWithMomentum) {
  OptimizerConfig optimizer;
  optimizer.kind = "sgd";
  optimizer.learning_rate = 0.1;
  optimizer.momentum = 0.9;
  optimizer.weight_decay = 0;
  const ReferenceRun run = train_on(build_network(trained_gpt(), 4, 5), text_data, 2, 60, optimizer);
  EXPECT_LT(run.losses.back(), 3.6);
}

TEST(Reference, ATreeOfStagesLearns) {
  OptimizerConfig optimizer;
  optimizer.learning_rate = 1e-2;
  for (const int stages : {3, 5}) {
    const ReferenceRun run =
        train_on(build_network(trained_mlp(2), 32, stages), synthetic_data, 2, 300, optimizer);
    EXPECT_LT(run.losses.back(), 0.15 * run.losses.front());
  }
}

TEST(Reference, LossesMatchGpt2InNumpy) {
  if (!have_numpy()) GTEST_SKIP() << "no NumPy in " STARPIPE_PYTHON;
  const Folder folder;
  ModelConfig config = trained_gpt();
  config.options["context"] = 80;  // more than one block of query rows
  const Network network = build_network(config, 2, 3);
  const auto data = make_dataset(text_data, config, {1, 2}, 1);
  // Large random weights, LayerNorms and biases too, so that every tensor matters.
  auto parameters = start_parameters(network, 1);
  for (std::size_t s = 0; s < parameters.size(); ++s) {
    const Floats noise = random_floats(parameters[s].size(), 50 + s, 0.2);
    for (std::size_t i = 0; i < noise.size(); ++i) parameters[s][i] += noise[i];
  }
  save_weights(folder / "w.safetensors", network, parameters);
  nlohmann::json job = {{"heads", option(config, "heads")}, {"context", option(config, "context")}};
  std::vector<double> losses;
  OptimizerConfig still;
  still.learning_rate = 0;
  for (int step = 0; step < 4; ++step) {
    Floats input(160);
    Floats target(160);
    data->input(step, 0, 0, input);
    data->target(step, 0, target);
    job["batches"].push_back({{"input", std::vector<int>(input.begin(), input.end())},
                              {"target", std::vector<int>(target.begin(), target.end())}});
  }
  losses = train_reference(network, *data, still, parameters, 1, 4).losses;
  const auto batches = folder.write("batches.json", job.dump());
  const ShellResult result = shell(STARPIPE_PYTHON " " STARPIPE_TEST_DIR "/networks/gpt2_numpy.py " +
                                   (folder / "w.safetensors").string() + " " + batches.string());
  ASSERT_EQ(result.status, 0) << result.output;
  std::istringstream lines(result.output);
  for (const double loss : losses) {
    double expected = 0;
    ASSERT_TRUE(lines >> expected) << result.output;
    EXPECT_NEAR(loss, expected, 1e-4 * expected);
    EXPECT_GT(expected, 5.6);  // such weights predict badly: no agreement by chance at ln(256)
  }
}

}  // namespace
}  // namespace starpipe::model
