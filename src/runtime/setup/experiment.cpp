// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/experiment.hpp"

#include <utility>

#include <fmt/format.h>

#include "runtime/setup/memory_limit.hpp"
#include "runtime/setup/planned_run.hpp"
#include "starpipe/base/error.hpp"
#include "model/data/make_dataset.hpp"
#include "starpipe/model/weights.hpp"
#include "runtime/config/config_rules.hpp"

namespace starpipe::runtime {

namespace {

void check_learning_rates(const TrainingConfig& training) {
  const model::OptimizerConfig& optimizer = training.optimizer;
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
  const bool has_end = kind == "linear" || kind == "cosine";
  if (has_end && !steps && training.steps <= warmup) {
    throw InputError(fmt::format(
        "training.optimizer.schedule.warmup: {} is not less than training.steps, {}, where the learning rate "
        "reaches the floor; give training.optimizer.schedule.steps to end elsewhere",
        warmup, training.steps));
  }
}

std::unique_ptr<model::Dataset> open_validation(const Config& config, const PlannedRun& run, int size) {
  const int microbatches = step_rules(config, run.schedule.microbatches()).evaluated;
  if (microbatches == 0) return nullptr;
  refuse_many_jobs("evaluate.microbatches", run.schedule.stages(), microbatches);
  return model::make_validation(config.data, config.model,
                                {.microbatches = microbatches, .microbatch_size = size},
                                config.training.seed);
}

}  // namespace

StepRules step_rules(const Config& config, int microbatches) {
  const bool evaluates = config.evaluates() || config.evaluate.alone;
  return {.has_norm = true,
          .can_skip = config.training.nonfinite == NonFinitePolicy::skip,
          .evaluated = evaluates ? config.evaluate.microbatches.value_or(microbatches) : 0};
}

void check_start(const Config& config, const model::Network& network) {
  if (config.model.init) model::check_weights(*config.model.init, network);
}

void check_for_profile(const Config& config) {
  check_values(config);
  check_learning_rates(config.training);
  const model::Network units = model::build_units(config.model, config.training.microbatch_size);
  check_start(config, units);
  model::require_data_sizes(units, config.data.kind);
  if (config.schedule.partition) {
    stage_count(config);
  } else {
    plan_run(config);
  }
}

Experiment make_experiment(const Config& config) {
  check_values(config);
  check_learning_rates(config.training);
  PlannedRun run = plan_run(config);
  model::require_data_sizes(run.network, config.data.kind);
  const model::BatchSize batch = {.microbatches = run.schedule.microbatches(),
                                  .microbatch_size = config.training.microbatch_size};
  std::unique_ptr<model::Dataset> data;
  if (!config.evaluate.alone)
    data = model::make_dataset(config.data, config.model, batch, config.training.seed);
  auto validation = open_validation(config, run, batch.microbatch_size);
  require_memory(config, run);
  std::optional<plan::Costs> emulated;
  if (config.runtime.emulate) emulated = std::move(run.costs);
  return {std::move(run.network), std::move(run.schedule), run.discipline,     run.reordering,
          std::move(data),        std::move(validation),   std::move(emulated)};
}

}  // namespace starpipe::runtime
