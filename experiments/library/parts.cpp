// SPDX-License-Identifier: Apache-2.0
// A program's own data set, layer, loss and network; a prediction, callbacks, and a checkpoint.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <starpipe/starpipe.hpp>

namespace model = starpipe::model;

// Points of the unit circle; the target is the angle's double.
class Circle : public model::Dataset {
 public:
  explicit Circle(std::size_t rows) : rows_(rows) {}
  void input(int step, int microbatch, int /*branch*/, std::span<float> out) const override {
    for (std::size_t r = 0; r < rows_; ++r) {
      out[2 * r] = std::cos(angle(step, microbatch, r));
      out[2 * r + 1] = std::sin(angle(step, microbatch, r));
    }
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    for (std::size_t r = 0; r < rows_; ++r) out[r] = std::cos(2 * angle(step, microbatch, r));
  }
  std::vector<std::uint64_t> offsets(int /*step*/, int /*microbatch*/) const override { return {}; }
  std::string sample_word() const override { return "points"; }
  std::size_t samples_per_microbatch() const override { return rows_; }

 private:
  // The same number on every rank, whatever it was asked before.
  float angle(int step, int microbatch, std::size_t row) const {
    return static_cast<float>((step * 31 + microbatch) * 17) + static_cast<float>(row);
  }
  std::size_t rows_;
};

// y = x^2. The stash keeps x for B.
class Square : public model::Layer {
 public:
  explicit Square(const model::LayerSpec& spec) : Layer(spec) { model::check_options(spec, {}); }
  std::size_t stash_size() const override { return rows_ * columns_; }
  double flops() const override { return static_cast<double>(rows_ * columns_); }
  void forward(const Forward& pass) const noexcept override {
    for (std::size_t i = 0; i < pass.input.size(); ++i) {
      pass.stash[i] = pass.input[i];
      pass.output[i] = pass.input[i] * pass.input[i];
    }
  }
  void backward_input(const Backward& pass) const noexcept override {
    for (std::size_t i = 0; i < pass.stash.size(); ++i)
      pass.input_gradient[i] = 2 * pass.stash[i] * pass.output_gradient[i];
  }
};

// The mean of |output - target|. The stash keeps the signs.
class Absolute : public model::Loss {
 public:
  using Loss::Loss;
  std::size_t target_columns() const override { return columns_; }
  float forward(std::span<const float> output, std::span<const float> target,
                std::span<float> stash) const noexcept override {
    float sum = 0;
    for (std::size_t i = 0; i < output.size(); ++i) {
      sum += std::abs(output[i] - target[i]);
      stash[i] = output[i] > target[i] ? 1.0F : -1.0F;
    }
    return sum / static_cast<float>(output.size());
  }
  void backward_input(std::span<const float> stash, float scale,
                      std::span<float> gradient) const noexcept override {
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = scale * stash[i] / static_cast<float>(gradient.size());
  }
};

const bool square = model::register_layer<Square>("square");
const bool absolute = model::register_loss<Absolute>("absolute");

// Two units, between which the network may be cut.
model::UnitGraph network(const model::ModelConfig& config, std::size_t rows) {
  const auto linear = [&](const char* name, std::size_t inputs, int outputs) {
    return model::layer_op({"linear", name, rows, inputs, {{"outputs", outputs}, {"deviation", 0.3}}},
                           config.precision);
  };
  model::UnitGraph graph;
  graph.rows = rows;
  graph.branch_inputs = 2;
  graph.branches = {
      {{"hidden", {linear("hidden", 2, 16), model::layer_op({"square", "", rows, 16, {}}, config.precision)}},
       {"head", {linear("head", 16, 1)}}}};
  graph.loss = model::make_loss("absolute", rows, 1, config.precision);
  return graph;
}

int main() try {
  const starpipe::MpiLibrary mpi;
  starpipe::Runtime runtime(MPI_COMM_WORLD,
                            {.on_message = [](const std::string& line) { std::puts(line.c_str()); }});
  starpipe::Config config;
  config.training.steps = 20;
  config.training.microbatches = 4;
  config.training.microbatch_size = 8;
  config.training.optimizer.learning_rate = 0.01;
  config.evaluate.every = 10;
  config.schedule.name = "zb-h1";
  config.schedule.workers = 2;
  config.checkpoint.folder = "checkpoints";
  config.checkpoint.every = 10;
  starpipe::TrainerParts parts;
  parts.network = network;
  parts.data = std::make_shared<Circle>(8);
  parts.validation = std::make_shared<Circle>(8);

  const bool root = runtime.rank() == 0;
  const starpipe::Prediction predicted = starpipe::predict(config, parts);
  if (root) std::printf("bubble %.0f %%\n", 100 * predicted.timeline.bubble_fraction);

  starpipe::Trainer trainer(runtime, config, parts);
  trainer.resume();  // from the last checkpoint, if an earlier run has left one
  if (root) {
    trainer.on_evaluation([](const starpipe::Evaluation& done) {
      std::printf("after step %d: loss %.4f\n", done.steps, done.loss);
    });
  }
  trainer.run();
  trainer.save_weights("circle.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
