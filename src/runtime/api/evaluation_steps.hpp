// SPDX-License-Identifier: Apache-2.0
// Evaluations: those between the steps of a training run, and their lines for people.
#pragma once

#include <string>

#include "runtime/engine/engine.hpp"
#include "runtime/report/train_record.hpp"
#include "runtime/setup/experiment.hpp"

namespace starpipe::runtime {

/// Whether a training run evaluates after `steps` steps: before the first one, after the last one, and every
/// `evaluate.every` steps. A checkpoint is written before the evaluation after its step, so a run that goes
/// on there begins with that evaluation.
bool evaluation_is_due(const Config& config, const Experiment& experiment, int steps);

/// Collective. The record is the same on every rank, but for the seconds.
EvaluationRecord evaluate_between_steps(Engine& engine, const Experiment& experiment, int steps);

/// "evaluation  loss 4.1234 (8 micro-batches)".
std::string evaluation_text(double loss, int microbatches);

}  // namespace starpipe::runtime
