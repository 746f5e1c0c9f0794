// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/model/layer.hpp"

namespace starpipe::model {

/// The order of the additions in sum_of_squares() and in a GPU's kernels. A parameter is cut
/// into chunks of `norm_chunk` numbers. In each chunk, lane l of 32 adds up the numbers l, l + 32, ...; then
/// the lanes' sums are added in a tree, l and l + 16 first. The chunks' sums are added in the same way.
inline constexpr std::size_t norm_lanes = 32;
inline constexpr std::size_t norm_chunk = 4096;

/// Returns the sum of the squares of one parameter's gradient. It is computed in fp64, where squares of
/// floats are exact and do not overflow, and in an order that depends on the number of values alone. So its
/// bits depend on no schedule, partition, rank or device. Thread-safe; does not allocate or throw.
double sum_of_squares(ConstFloatView values) noexcept;

/// Returns the words of 4 bytes of scratch in which a GPU adds the squares of parameters of these sizes: a
/// double for each parameter and each of its chunks.
std::size_t norm_scratch_words(std::span<const std::size_t> sizes);

/// Returns the norm of a gradient, from the sums of squares of all parameters in the model's order. NaN or
/// infinity exactly if the gradient has such a value.
double gradient_norm(std::span<const double> sums) noexcept;

/// Returns the factor of clipping, as torch.nn.utils.clip_grad_norm_ does: min(1, clip / (norm + 1e-6)) as a
/// float; NaN if the norm is NaN. 1 without `clip`.
float clip_scale(std::optional<double> clip, double norm) noexcept;

/// The values of LearningRateSchedule::kind.
inline constexpr std::array<std::string_view, 4> learning_rate_kinds = {"constant", "linear", "cosine",
                                                                        "inverse_sqrt"};

/// `training.optimizer.schedule:` of the configuration: how the learning rate changes from step to step.
struct LearningRateSchedule {
  std::string kind = "constant";
  int warmup = 0;                           ///< steps in which the rate rises
  double floor = 0;                         ///< the lowest rate after the warm-up; not for `constant`
  std::optional<int> steps = std::nullopt;  ///< where `linear` and `cosine` reach the floor: the run's steps
};

/// Returns the learning rate of step t = `step`, from 0. `peak`: the rate after the warm-up.
///
/// With w = `warmup` and T = `steps`:
///   t < w:         peak (t + 1) / (w + 1)
///   constant:      peak
///   linear:        floor + (1 - x) (peak - floor), x = (t - w) / (T - w); floor from t = T on
///   cosine:        floor + (1 + cos(pi x)) / 2 (peak - floor), likewise
///   inverse_sqrt:  max(floor, peak sqrt((w + 1) / (t + 1)))
///
/// Warm-up and cosine are as in nanoGPT's get_lr; the cosine is from SGDR (arXiv 1608.03983, equation 5),
/// the inverse square root from "Attention Is All You Need" (arXiv 1706.03762, equation 3, with w + 1 steps
/// of warm-up). `schedule.steps` must have a value for `linear` and `cosine`. Thread-safe.
double learning_rate(const LearningRateSchedule& schedule, double peak, int step);

/// AdamW (arXiv 1711.05101), and SGD with momentum: v = momentum * v + g; w -= learning_rate * v.
inline constexpr std::array<std::string_view, 2> optimizer_kinds = {"adamw", "sgd"};

/// The values of OptimizerConfig::decay.
inline constexpr std::array<std::string_view, 2> decay_kinds = {"all", "matrices"};

/// `training.optimizer:` of the configuration, with PyTorch's names, formulas and AdamW's defaults, and
/// `training.clip`. The functions below expect values that the configuration's keys allow
/// (runtime/config/config_keys.hpp).
struct OptimizerConfig {
  std::string kind = "adamw";
  double learning_rate = 1e-3;  ///< the highest, where `schedule` changes it
  double weight_decay = 0.01;
  double momentum = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::string decay = "all";  ///< the parameters that decay; matrices: two or more dimensions
  LearningRateSchedule schedule = {};
  std::optional<double> clip = std::nullopt;  ///< the largest norm of the gradient that an update uses
};

/// Returns the floats of optimizer state for `parameters` floats: for adamw twice as many (all first moments,
/// then all second ones), for sgd with momentum as many (velocities), otherwise 0. The state is all zeros
/// before the first step.
std::size_t optimizer_state_size(const OptimizerConfig& config, std::size_t parameters);

/// Consecutive numbers of a set of parameters that all decay, or that all do not.
struct DecayRange {
  std::size_t first = 0;
  std::size_t count = 0;
  bool decays = true;
  friend bool operator==(const DecayRange&, const DecayRange&) = default;
};

/// Returns the ranges of all numbers of `parameters`, which lie in sequence; as few as possible.
std::vector<DecayRange> decay_ranges(const OptimizerConfig& config, std::span<const Parameter> parameters);

/// The values that an update needs besides the configuration.
struct Update {
  int number = 1;                      ///< of the update, from 1: AdamW's t
  double learning_rate = 0;            ///< of the step
  float scale = 1;                     ///< of the gradient: clip_scale()
  std::span<const DecayRange> ranges;  ///< of all parameters
};

/// Updates a set of parameters once. For a parameter w with gradient g, after g *= scale, and with bias
/// correction of AdamW's moments m and v:
///   adamw:  m += (1 - beta1) (g - m); v = beta2 v + (1 - beta2) g^2;
///           w = (1 - rate decay) w - rate m / (sqrt(v) + epsilon)
///   sgd:    v = momentum v + (g + decay w); w -= rate v
/// Reads the gradient once: clipping takes no pass of its own. `gradient`
/// and `parameters` have one float per parameter, `state` has optimizer_state_size() floats. Thread-safe;
/// does not allocate or throw.
void optimizer_step(const OptimizerConfig& config, const Update& update, ConstFloatView gradient,
                    FloatView parameters, FloatView state) noexcept;

}  // namespace starpipe::model
