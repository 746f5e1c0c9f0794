// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/setup/experiment.hpp"

#include <utility>

#include <fmt/format.h>

#include "runtime/setup/memory_limit.hpp"
#include "runtime/setup/planned_run.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/model/data/make_dataset.hpp"
#include "starpipe/model/weights.hpp"
#include "starpipe/runtime/config/config_rules.hpp"

namespace starpipe::runtime {

namespace {

void check_learning_rates(const model::OptimizerConfig& optimizer) {
  const auto& [kind, warmup, floor, steps] = optimizer.schedule;
  if (floor > optimizer.learning_rate) {
    throw InputError(
        fmt::format("training.optimizer.schedule.floor: {} is more than training.optimizer.learning_rate, {}",
                    floor, optimizer.learning_rate));
  }
  if (steps && *steps <= warmup) {
    throw InputError(fmt::format(
        "training.optimizer.schedule.steps: {} is not more than training.optimizer.schedule.warmup, {}",
        *steps, warmup));
  }
}

}  // namespace

StepRules step_rules(const Config& config) {
  return {.has_norm = true, .can_skip = config.training.nonfinite == NonFinitePolicy::skip};
}

void check_start(const Config& config, const model::Network& network) {
  if (config.model.init) model::check_weights(*config.model.init, network);
}

void check_for_profile(const Config& config) {
  check_values(config);
  check_learning_rates(config.training.optimizer);
  check_start(config, model::build_units(config.model, config.training.microbatch_size));
  if (config.schedule.partition) {
    stage_count(config);
  } else {
    plan_run(config);
  }
}

Experiment make_experiment(const Config& config) {
  check_values(config);
  check_learning_rates(config.training.optimizer);
  PlannedRun run = plan_run(config);
  auto data = model::make_dataset(
      config.data, config.model,
      {.microbatches = run.schedule.microbatches(), .microbatch_size = config.training.microbatch_size},
      config.training.seed);
  require_memory(config, run);
  std::optional<plan::Costs> emulated;
  if (config.runtime.emulate) emulated = std::move(run.costs);
  return {std::move(run.network), std::move(run.schedule), run.discipline,
          run.reordering,         std::move(data),         std::move(emulated)};
}

}  // namespace starpipe::runtime
