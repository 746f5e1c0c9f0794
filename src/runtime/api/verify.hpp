// SPDX-License-Identifier: Apache-2.0
// Compares the steps of the engine with the same steps computed sequentially.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/verification.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/runtime/api/trainer.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Names the values that `verify` compares, in the order of a step.
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

/// Returns the relative difference that rounding explains (docs/verify.md states the rule). `other_kernels`:
/// true if the two sides compute with different kernels, as a GPU does. `additions`: additions per gradient.
double rounding_tolerance(model::Precision precision, bool other_kernels, double additions);

/// Compares the engine's steps with expected ones. Each step is expected from the parameters that the engine
/// had before it, so that differences of one step do not grow in the next ones.
class StepComparison {
 public:
  /// `parameters`: start values, [set], as Network::sets() numbers them. `optimizer`: with the steps of its
  /// schedule. References must outlive this.
  StepComparison(const model::Network& network, const model::Dataset& data, int microbatches,
                 const model::OptimizerConfig& optimizer, model::SetValues parameters, double tolerance);

  /// Compares a step. `gradients` and `parameters`: the engine's after the step, [set].
  void add(const Step& result, const model::SetValues& gradients, model::SetValues parameters);
  /// Adds what finite differences say of the first `microbatches` micro-batches of the first step.
  void add(const std::vector<model::DerivativeCheck>& checks, int microbatches);

  /// Compares the engine's gradients of the first step, `found`, with another framework's gradients, [set].
  /// Call it after `add` of that step. `tolerance` is relative to the same sizes as among our own gradients.
  void add_file_gradients(const model::SetValues& found, const model::SetValues& expected, double tolerance);
  /// Compares the weights after the last step added with another framework's weights, [set]. `start`: before
  /// the first step. `tolerance` is relative to the change since then; both are root mean squares over a
  /// parameter. AdamW makes a whole update of a gradient that is a rounding error. So under AdamW a number is
  /// left out when its gradient was, in some step, within `rounding` of the sizes among our own gradients.
  void add_file_weights(const model::SetValues& start, const model::SetValues& expected, double tolerance,
                        double rounding);

  [[nodiscard]] const std::vector<Difference>& all() const { return all_; }
  /// Returns one line about the first difference; empty if all agree.
  [[nodiscard]] std::string problem() const;
  [[nodiscard]] std::string table() const;
  [[nodiscard]] nlohmann::ordered_json json() const;

 private:
  // A parameter, and where its numbers are in values by set.
  struct Part {
    std::size_t set;
    std::size_t first;
    std::size_t size;
    int stage;
    std::string name;

    template <class Value>
    [[nodiscard]] std::span<const Value> of(const std::vector<std::vector<Value>>& values) const {
      return std::span(values[set]).subspan(first, size);
    }
  };

  void add_parameter(Compared what, int step, const Part& part, double absolute, double scale,
                     double allowed);
  // Of a loss or a norm.
  void add_number(Compared what, int step, std::string name, double absolute, double scale);
  void add_repeats(int step, const model::ExpectedGradient& expected);
  template <class Value>
  void add_gradients(Compared what, int step, const std::vector<std::vector<double>>& magnitudes,
                     const std::vector<std::vector<Value>>& expected, const model::SetValues& found,
                     double tolerance);
  void keep_smallest_gradients(const std::vector<std::vector<double>>& magnitudes,
                               const model::SetValues& gradients);
  // Returns the norm of the engine's own gradient, as its tasks compute it.
  [[nodiscard]] double norm_of(const model::SetValues& gradients) const;
  void add_updates(const Step& result, const model::SetValues& gradients, const model::SetValues& found);
  [[nodiscard]] const Difference* first_wrong() const;

  const model::Network& network_;
  std::vector<model::ParameterSet> sets_;
  std::vector<Part> parts_;  // all parameters
  const model::Dataset& data_;
  int microbatches_;
  model::OptimizerConfig optimizer_;
  model::SetValues parameters_;  // of the engine before the step
  model::SetValues states_;      // of the optimizer
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

/// A request to verify a run.
struct VerifyRequest {
  std::optional<int> steps = {};         ///< at most `training.steps`; 3, or fewer where a run has fewer
  std::optional<double> tolerance = {};  ///< relative; nullopt: what rounding explains (docs/verify.md)
  bool derivatives = true;               ///< also check the passes by finite differences
  /// Safetensors files of another framework, with the names and shapes of the weights: the gradients of the
  /// first step, before clipping and averaged over the micro-batches; and the weights after the last step
  /// that is compared.
  std::optional<std::filesystem::path> against_gradients = {};
  std::optional<std::filesystem::path> against_weights = {};
};

/// The result of `verify` on rank 0. On the other ranks only `problem` is set.
struct Verification {
  std::string schedule;
  int workers = 0;
  int steps = 0;
  nlohmann::ordered_json figures;  ///< StepComparison::json
  std::string table;               ///< StepComparison::table
  std::string problem;             ///< one line about what differs first; "" if all agree
};

/// Returns the configuration of a run of these steps. Throws InputError when nothing can be compared.
Config config_to_verify(Config config, const VerifyRequest& request);

/// Trains the first steps of the configured run, and after each step compares it with the same step computed
/// sequentially on rank 0, without the task graph and StarPU: losses, gradients, their norm, the update.
/// Compares them with the files of `against_gradients` and `against_weights`, too. `trainer`: of
/// `config_to_verify`, before its first step. `progress`: called on rank 0 with what is being compared.
/// Collective.
Verification verify(const Runtime& runtime, Trainer& trainer, const VerifyRequest& request,
                    const std::function<void(const std::string&)>& progress);

}  // namespace starpipe::runtime
