// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace starpipe::model {

/// `training.optimizer:` of the configuration, with PyTorch's names, formulas and defaults.
struct OptimizerConfig {
  std::string kind = "adamw";  ///< "adamw" (arXiv 1711.05101) or "sgd"
  double learning_rate = 1e-3;
  double weight_decay = 0.01;  ///< adamw: decoupled; sgd: added to the gradient (its default is 0)
  double momentum = 0.0;       ///< sgd: v = momentum * v + g; w -= learning_rate * v
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

/// Throws InputError with the key (`training.optimizer.beta1`) of a value that cannot work. The functions
/// below expect a configuration that this check accepts.
void check_optimizer(const OptimizerConfig& config);

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
