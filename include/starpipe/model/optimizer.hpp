// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace starpipe::model {

/// AdamW (arXiv 1711.05101), and SGD with momentum: v = momentum * v + g; w -= learning_rate * v.
inline constexpr std::array<std::string_view, 2> optimizer_kinds = {"adamw", "sgd"};

/// `training.optimizer:` of the configuration, with PyTorch's names, formulas and AdamW's defaults. The
/// functions below expect values that the configuration's keys allow (runtime/config/config_keys.hpp).
struct OptimizerConfig {
  std::string kind = "adamw";
  double learning_rate = 1e-3;
  double weight_decay = 0.01;
  double momentum = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

/// Floats of optimizer state for `parameters` floats: for adamw twice as many (all first moments, then all
/// second ones), for sgd with momentum as many (velocities), otherwise 0. The state is all zeros before the
/// first step.
std::size_t optimizer_state_size(const OptimizerConfig& config, std::size_t parameters);

/// The factors of an AdamW update, computed in double and rounded once, as torch does. For a parameter w with
/// gradient g and moments m and v: m += new1 (g - m); v = beta2 v + new2 g^2; w = keep w - rate m / (sqrt(v)
/// / root + epsilon).
struct AdamWFactors {
  float keep, new1, beta2, new2, rate, root, epsilon;
};
AdamWFactors adamw_factors(const OptimizerConfig& config, int step);

/// One update of all parameters. Weight decay applies to every parameter, as in torch.optim by default.
/// `step` counts from 1. Thread-safe; does not allocate or throw.
void optimizer_step(const OptimizerConfig& config, int step, std::span<const float> gradient,
                    std::span<float> parameters, std::span<float> state) noexcept;

}  // namespace starpipe::model
