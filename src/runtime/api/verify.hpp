// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "runtime/host/mpi.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

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

/// The configuration of a run of these steps. Throws InputError when nothing can be compared.
Config config_to_verify(Config config, const VerifyRequest& request);

/// Trains the first steps of the configured run, and after each step compares it with the same step computed
/// sequentially on rank 0, without the task graph and StarPU: losses, gradients, their norm, the update.
/// Compares them with the files of `against_gradients` and `against_weights`, too. `config`: of
/// `config_to_verify`. `check`: called on rank 0 before StarPU starts; its InputError is thrown on every
/// rank. `progress`: called on rank 0 with what is being compared. Collective.
Verification verify(const Mpi& mpi, Config config, const VerifyRequest& request,
                    const std::function<void()>& check,
                    const std::function<void(const std::string&)>& progress);

}  // namespace starpipe::runtime
