// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "starpipe/plan/check.hpp"
#include "starpipe/plan/error.hpp"
#include "starpipe/plan/registry.hpp"
#include "starpipe/runtime/config.hpp"

namespace starpipe::runtime {
namespace {

plan::Schedule build_schedule(const Config& config, const plan::StageGraph& graph) {
  const ScheduleConfig& wanted = config.schedule;
  plan::ScheduleRequest request;
  request.workers = wanted.workers;
  request.microbatches = config.training.microbatches;
  request.graph = graph;
  request.groups = wanted.groups;
  request.stage_workers = wanted.placement;
  plan::Schedule schedule = plan::make_schedule(wanted.name, request);
  if (wanted.discipline || wanted.memory_limit) {
    std::vector<int> limits(schedule.memory_limits().begin(), schedule.memory_limits().end());
    if (wanted.memory_limit) limits.assign(static_cast<std::size_t>(wanted.workers), *wanted.memory_limit);
    schedule = schedule.with(wanted.discipline.value_or(plan::Discipline::bounded), std::move(limits));
  }
  if (const plan::CheckResult result = plan::check(schedule); !result.ok()) {
    throw InputError(fmt::format("schedule {}: {}", schedule.name(), result.problem));
  }
  return schedule;
}

}  // namespace

Experiment make_experiment(const Config& config) {
  const int stages = config.schedule.stages.value_or(
      plan::find_schedule(config.schedule.name).stages_per_worker * config.schedule.workers);
  constexpr std::int64_t most = 1'000'000;  // StarPU's bookkeeping for more would fill the memory
  if (std::int64_t{stages} * config.training.microbatches > most) {
    throw InputError(
        fmt::format("training.microbatches: {} micro-batches of {} stages are too many jobs to run",
                    config.training.microbatches, stages));
  }
  model::Network network =
      model::build_network(config.model, config.training.microbatch_size, stages, config.schedule.cuts);
  plan::Schedule schedule = build_schedule(config, network.graph);
  auto data =
      model::make_dataset(config.data, config.model, config.training.microbatch_size, config.training.seed);
  return {std::move(network), std::move(schedule), std::move(data)};
}

}  // namespace starpipe::runtime
