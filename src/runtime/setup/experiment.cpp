// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/setup/experiment.hpp"

#include <utility>

#include "runtime/setup/memory_limit.hpp"
#include "runtime/setup/planned_run.hpp"
#include "starpipe/model/data/make_dataset.hpp"
#include "starpipe/runtime/config/config_rules.hpp"

namespace starpipe::runtime {

Experiment make_experiment(const Config& config) {
  check_values(config);
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
