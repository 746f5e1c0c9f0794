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
#include "starpipe/model/learning_rate.hpp"

namespace starpipe::model {

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
  std::string decay = "all";  ///< which parameters decay; matrices: those of two or more dimensions
  LearningRateSchedule schedule = {};
  std::optional<double> clip = std::nullopt;  ///< the largest norm of the gradient that an update uses
};

/// Floats of optimizer state for `parameters` floats: for adamw twice as many (all first moments, then all
/// second ones), for sgd with momentum as many (velocities), otherwise 0. The state is all zeros before the
/// first step.
std::size_t optimizer_state_size(const OptimizerConfig& config, std::size_t parameters);

/// Consecutive numbers of a set of parameters that all decay, or that all do not.
struct DecayRange {
  std::size_t first = 0;
  std::size_t count = 0;
  bool decays = true;
  friend bool operator==(const DecayRange&, const DecayRange&) = default;
};

/// The ranges of all numbers of `parameters`, which lie one after the other; as few as possible.
std::vector<DecayRange> decay_ranges(const OptimizerConfig& config, std::span<const Parameter> parameters);

/// What an update needs besides the configuration.
struct Update {
  int number = 1;                      ///< of the update, from 1: AdamW's t
  double learning_rate = 0;            ///< of the step
  float scale = 1;                     ///< of the gradient: clip_scale()
  std::span<const DecayRange> ranges;  ///< of all parameters
};

/// The factors of an update of one range, computed in double and rounded once, as torch does. For a parameter
/// w with gradient g, after g *= scale:
///   AdamW, with moments m and v: m += new1 (g - m); v = beta2 v + new2 g^2;
///                                w = keep w - rate m / (sqrt(v) / root + epsilon)
///   SGD, with velocity v:        v = momentum v + (g + decay w); w -= rate v
struct AdamWFactors {
  float scale, keep, new1, beta2, new2, rate, root, epsilon;
};
struct SgdFactors {
  float scale, decay, momentum, rate;
};
AdamWFactors adamw_factors(const OptimizerConfig& config, const Update& update, bool decays);
SgdFactors sgd_factors(const OptimizerConfig& config, const Update& update, bool decays);

/// One update of a set of parameters. Reads the gradient once: clipping takes no pass of its own. `gradient`
/// and `parameters` have one float a parameter, `state` has optimizer_state_size() floats. Thread-safe; does
/// not allocate or throw.
void optimizer_step(const OptimizerConfig& config, const Update& update, std::span<const float> gradient,
                    std::span<float> parameters, std::span<float> state) noexcept;

}  // namespace starpipe::model
