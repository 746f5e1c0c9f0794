// SPDX-License-Identifier: Apache-2.0
#include "model/data/make_dataset.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/data/sequences.hpp"
#include "model/random.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/network_registry.hpp"
#include "starpipe/model/stage.hpp"

namespace starpipe::model {

namespace {

/// A regression task. Features are standard normal; targets are the outputs of a fixed random network, the
/// teacher, with one hidden layer of tanh. `model` has the keys `inputs` and `outputs`, and may have
/// `branches`. `samples`: of a micro-batch. Validation has other samples from the same teacher.
class SyntheticDataset final : public Dataset {
 public:
  SyntheticDataset(const ModelConfig& model, int samples, std::uint64_t seed, bool is_validation)
      : inputs_(index(option(model, "inputs"))),
        outputs_(index(option(model, "outputs"))),
        branches_(index(option_or(model, "branches", 1))),
        samples_(index(samples)),
        seed_(seed),
        stream_(is_validation ? validation_stream : sample_stream) {
    Normal normal(generator(seed, std::array{teacher_stream}));
    first_ = weights(normal, inputs_, hidden_size);
    second_ = weights(normal, hidden_size, outputs_);
  }

  void input(int step, int microbatch, int branch, FloatView out) const override {
    const std::vector<float> x = features(step, microbatch);
    const std::size_t columns = inputs_ / branches_;
    for (std::size_t r = 0; r < samples_; ++r) {
      const float* from = x.data() + r * inputs_ + index(branch) * columns;
      std::copy_n(from, columns, out.data() + r * columns);
    }
  }
  void target(int step, int microbatch, FloatView out) const override {
    const std::vector<float> x = features(step, microbatch);
    std::array<double, hidden_size> hidden;
    for (std::size_t r = 0; r < samples_; ++r) {
      for (std::size_t h = 0; h < hidden_size; ++h) {
        double sum = 0;
        for (std::size_t i = 0; i < inputs_; ++i) {
          sum += first_[h * inputs_ + i] * static_cast<double>(x[r * inputs_ + i]);
        }
        hidden[h] = std::tanh(sum);
      }
      for (std::size_t o = 0; o < outputs_; ++o) {
        double sum = 0;
        for (std::size_t h = 0; h < hidden_size; ++h) sum += second_[o * hidden_size + h] * hidden[h];
        out[r * outputs_ + o] = static_cast<float>(sum);
      }
    }
  }
  std::vector<std::uint64_t> offsets(int /*step*/, int /*microbatch*/) const override { return {}; }
  std::string sample_word() const override { return "samples"; }
  std::size_t samples_per_microbatch() const override { return samples_; }

 private:
  static constexpr std::size_t hidden_size = 32;
  // The first word that seeds a generator, after the seed: so weights and features have generators of their
  // own.
  static constexpr std::uint32_t teacher_stream = 0;
  static constexpr std::uint32_t sample_stream = 1;
  static constexpr std::uint32_t validation_stream = 2;

  /// Returns random weights [outputs, inputs], scaled so that outputs have the variance of the inputs.
  static std::vector<double> weights(Normal& normal, std::size_t inputs, std::size_t outputs) {
    std::vector<double> result(inputs * outputs);
    for (double& value : result) value = normal() / std::sqrt(static_cast<double>(inputs));
    return result;
  }
  std::vector<float> features(int step, int microbatch) const {
    Normal normal(generator(seed_, std::array{stream_, seed_word(step), seed_word(microbatch)}));
    std::vector<float> x(samples_ * inputs_);
    for (float& value : x) value = static_cast<float>(normal());
    return x;
  }

  std::size_t inputs_;
  std::size_t outputs_;
  std::size_t branches_;
  std::size_t samples_;
  std::uint64_t seed_;
  std::uint32_t stream_;  // of the samples
  std::vector<double> first_;
  std::vector<double> second_;
};

std::unique_ptr<Dataset> open_dataset(const DataConfig& data, const ModelConfig& model, BatchSize batch,
                                      std::uint64_t seed, bool is_validation) {
  const std::vector<std::string>& kinds = find_network(model.kind).data;
  if (std::ranges::find(kinds, data.kind) == kinds.end()) {
    throw InputError(fmt::format("data.kind: {} does not fit model.kind {}, which reads {}", data.kind,
                                 model.kind, fmt::join(kinds, " or ")));
  }
  if (data.kind == synthetic_data)
    return std::make_unique<SyntheticDataset>(model, batch.microbatch_size, seed, is_validation);
  if (data.path.empty()) {
    throw InputError(fmt::format("data.{}: is needed for data.kind {}{}",
                                 is_validation ? "validation" : "path", data.kind,
                                 is_validation ? " to evaluate" : ""));
  }
  const int vocabulary = option_or(model, "vocabulary", byte_values);
  if (data.kind == text_data && vocabulary < byte_values) {
    throw InputError(fmt::format("model.vocabulary: {} is less than {}, which data.kind text needs",
                                 vocabulary, byte_values));
  }
  return make_sequence_dataset(data, index(vocabulary), index(option(model, "context")), batch, seed);
}

}  // namespace

void require_data_sizes(const Network& network, std::string_view data_kind) {
  const ModelConfig& model = network.config;
  const bool synthetic = data_kind == synthetic_data;
  const std::size_t samples = index(network.microbatch_size);
  const std::size_t rows = synthetic ? samples : samples * index(option(model, "context"));
  const int branches = synthetic ? option_or(model, "branches", 1) : 1;
  const std::size_t inputs = synthetic ? index(option(model, "inputs") / branches) : 1;
  const std::size_t outputs = synthetic ? index(option(model, "outputs")) : 1;
  const auto require = [&](std::string_view what, std::array<std::size_t, 2> reads,
                           std::array<std::size_t, 2> gives) {
    if (reads == gives) return;
    throw InputError(fmt::format("model.kind: the {} of {} reads {} of a micro-batch, data.kind {} has {}",
                                 what, model.kind, fmt::join(reads, " x "), data_kind,
                                 fmt::join(gives, " x ")));
  };
  int sources = 0;
  bool has_target = false;
  for (int s = 0; s < network.graph.size(); ++s) {
    const Stage& stage = network.stages[index(s)];
    if (network.source_index(s) >= 0) {
      require(fmt::format("source {}", s), {stage.rows(), stage.input_columns()[0]}, {rows, inputs});
      sources = std::max(sources, network.source_index(s) + 1);  // shards read the same data
    }
    if (stage.target_columns() == 0) continue;
    require(stage.is_sink() ? "sink" : fmt::format("stage {}", s), {stage.rows(), stage.target_columns()},
            {rows, outputs});
    has_target = true;
  }
  if (!has_target) require("sink", {rows, 0}, {rows, outputs});
  if (synthetic && sources != branches) {
    throw InputError(fmt::format("model.kind: {} has {} sources, data.kind {} is for {} (model.branches)",
                                 model.kind, sources, data_kind, branches));
  }
}

std::unique_ptr<Dataset> make_dataset(const DataConfig& data, const ModelConfig& model, BatchSize batch,
                                      std::uint64_t seed) {
  return open_dataset(data, model, batch, seed, false);
}

std::unique_ptr<Dataset> make_validation(const DataConfig& data, const ModelConfig& model, BatchSize batch,
                                         std::uint64_t seed) {
  DataConfig validation = data;
  validation.path = data.validation;
  validation.order = SampleOrder::sequential;
  return open_dataset(validation, model, batch, seed, true);
}

}  // namespace starpipe::model
