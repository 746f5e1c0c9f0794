// SPDX-License-Identifier: Apache-2.0
#include "runtime/api/evaluation_steps.hpp"

#include <cmath>

#include <fmt/format.h>

#include "base/numbers.hpp"

namespace starpipe::runtime {

bool evaluation_is_due(const Config& config, const Experiment& experiment, int steps) {
  if (!experiment.validation) return false;
  return steps == 0 || steps == config.training.steps ||
         (config.evaluate.every && steps % *config.evaluate.every == 0);
}

EvaluationRecord evaluate_between_steps(Engine& engine, const Experiment& experiment, int steps) {
  const EvaluationResult result = engine.evaluate(steps, *experiment.validation);
  return {.step = steps,
          .loss = result.loss,
          .microbatches = static_cast<int>(result.losses.size()),
          .seconds = result.seconds};
}

std::string evaluation_text(double loss, int microbatches) {
  return fmt::format("evaluation  loss {}{} ({} micro-batch{})", loss_text(loss),
                     std::isfinite(loss) ? "" : ", which is not finite", microbatches,
                     microbatches == 1 ? "" : "es");
}

}  // namespace starpipe::runtime
