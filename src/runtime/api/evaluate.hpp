// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "runtime/engine/engine.hpp"
#include "runtime/report/report.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The outputs of `evaluate`.
struct EvaluateOutputs {
  bool json = false;                            ///< JSON on standard output instead of a line
  std::optional<std::filesystem::path> report;  ///< JSON, with the configuration and the machine
};

/// Runs the forward passes of the schedule on the validation data with the weights of `model.init`, on the
/// ranks of MPI_COMM_WORLD, and prints the mean loss. `configure` returns a configuration with
/// `evaluate.alone`. Collective; errors and exit code are those of `train`.
int evaluate(const std::function<Config()>& configure, const EvaluateOutputs& outputs);

// Evaluations: those between the steps of a training run, and their lines for people.

/// Whether a training run evaluates after `steps` steps: before the first one, after the last one, and every
/// `evaluate.every` steps. A checkpoint is written before the evaluation after its step, so a run that goes
/// on there begins with that evaluation.
bool evaluation_is_due(const Config& config, const Experiment& experiment, int steps);

/// Collective. The record is the same on every rank, but for the seconds.
EvaluationRecord evaluate_between_steps(Engine& engine, const Experiment& experiment, int steps);

/// "evaluation  loss 4.1234 (8 micro-batches)".
std::string evaluation_text(double loss, int microbatches);

}  // namespace starpipe::runtime
