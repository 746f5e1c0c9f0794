// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "model/verification.hpp"
#include "runtime/engine/engine.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime {

/// What `verify` compares, in the order of a step.
enum class Compared : std::uint8_t {
  repeat,  ///< two runs of the same passes, without the engine
  loss,
  gradient,
  norm,
  update,
  derivative,
  file_gradient,
  file_weights
};

/// The largest difference of one loss, norm or parameter.
struct Difference {
  Compared what = Compared::loss;
  int step = 0;    ///< from 0
  int stage = -1;  ///< -1 for losses and norms
  std::string name = {};
  double absolute = 0;
  double scale = 0;  ///< what `absolute` is relative to
  double allowed = 0;
  [[nodiscard]] double relative() const;
  [[nodiscard]] bool agrees() const { return absolute <= allowed; }
};

/// The relative difference that rounding explains (docs/verify.md states the rule). `other_kernels`: true
/// if the two sides compute with different kernels, as a GPU does. `additions`: additions per gradient.
double rounding_tolerance(model::Precision precision, bool other_kernels, double additions);

/// Compares the engine's steps with expected ones. Each step is expected from the parameters that the engine
/// had before it, so that differences of one step do not grow in the next ones.
class StepComparison {
 public:
  /// `parameters`: start values, [set], as Network::sets() numbers them. `optimizer`: with the steps of its
  /// schedule. References must outlive this.
  StepComparison(const model::Network& network, const model::Dataset& data, int microbatches,
                 const model::OptimizerConfig& optimizer, std::vector<std::vector<float>> parameters,
                 double tolerance);

  /// Compares a step. `gradients` and `parameters`: the engine's after the step, [set].
  void add(int step, const StepResult& result, const std::vector<std::vector<float>>& gradients,
           std::vector<std::vector<float>> parameters);
  /// Adds what finite differences say of the first `microbatches` micro-batches of the first step.
  void add(const std::vector<model::DerivativeCheck>& checks, int microbatches);

  /// Compares the engine's gradients of the first step, `found`, with another framework's gradients, [set].
  /// Call it after `add` of that step. `tolerance` is relative to the same sizes as among our own gradients.
  void add_file_gradients(const std::vector<std::vector<float>>& found,
                          const std::vector<std::vector<float>>& expected, double tolerance);
  /// Compares the weights after the last step added with another framework's weights, [set]. `start`: before
  /// the first step. `tolerance` is relative to the change since then; both are root mean squares over a
  /// parameter. AdamW makes a whole update of a gradient that is a rounding error. So under AdamW a number is
  /// left out when its gradient was, in some step, within `rounding` of the sizes among our own gradients.
  void add_file_weights(const std::vector<std::vector<float>>& start,
                        const std::vector<std::vector<float>>& expected, double tolerance, double rounding);

  [[nodiscard]] const std::vector<Difference>& all() const { return all_; }
  /// One line about the first difference; empty if all agree.
  [[nodiscard]] std::string problem() const;
  [[nodiscard]] std::string table() const;
  [[nodiscard]] nlohmann::ordered_json json() const;

 private:
  void add_repeats(int step, const model::ExpectedGradient& expected);
  void add_losses(int step, const std::vector<double>& expected, const std::vector<float>& found);
  template <class Value>
  void add_gradients(const Difference& kind, const std::vector<std::vector<double>>& magnitudes,
                     const std::vector<std::vector<Value>>& expected,
                     const std::vector<std::vector<float>>& found, double tolerance);
  void keep_smallest_gradients(const std::vector<std::vector<double>>& magnitudes,
                               const std::vector<std::vector<float>>& gradients);
  void add_norm(int step, const model::ExpectedGradient& expected, std::optional<double> found);
  void add_updates(int step, const StepResult& result, const std::vector<std::vector<float>>& gradients,
                   const std::vector<std::vector<float>>& found);
  [[nodiscard]] const Difference* first_wrong() const;

  const model::Network& network_;
  std::vector<model::ParameterSet> sets_;
  const model::Dataset& data_;
  int microbatches_;
  model::OptimizerConfig optimizer_;
  std::vector<std::vector<float>> parameters_;  // of the engine before the step
  std::vector<std::vector<float>> states_;      // of the optimizer
  double tolerance_;
  std::vector<std::vector<double>> first_magnitudes_;  // of the first step's gradients
  // The smallest gradient of each number in a step, relative to the size that add_gradients allows for.
  std::vector<std::vector<double>> smallest_gradients_;
  int last_step_ = 0;
  int updates_ = 0;
  int undecided_ = 0;  // derivatives
  std::size_t undecided_weights_ = 0;
  int derivative_microbatches_ = 0;
  std::vector<Difference> all_;
};

}  // namespace starpipe::runtime
