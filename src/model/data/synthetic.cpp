// SPDX-License-Identifier: Apache-2.0
#include "model/data/synthetic.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "model/random.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::model {
namespace {

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

  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    const std::vector<float> x = features(step, microbatch);
    const std::size_t columns = inputs_ / branches_;
    for (std::size_t r = 0; r < samples_; ++r) {
      const float* from = x.data() + r * inputs_ + index(branch) * columns;
      std::copy_n(from, columns, out.data() + r * columns);
    }
  }
  void target(int step, int microbatch, std::span<float> out) const override {
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

  /// Random weights [outputs, inputs], scaled so that outputs have the variance of the inputs.
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

}  // namespace

std::unique_ptr<Dataset> make_synthetic_dataset(const ModelConfig& model, int samples, std::uint64_t seed,
                                                bool is_validation) {
  return std::make_unique<SyntheticDataset>(model, samples, seed, is_validation);
}

}  // namespace starpipe::model
