// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/experiment.hpp"

#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/plan/formats/formats.hpp"
#include "starpipe/plan/registry/plugin.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

int stage_count(const Config& config) {
  for (const std::string& file : config.schedule.plugins) plan::load_plugin(file);
  return config.schedule.stages.value_or(plan::find_schedule(config.schedule.name).stages_per_worker *
                                         config.schedule.workers.value());
}

namespace {

model::Network network_of(const Config& config, int stages) {
  return model::build_network(config.model, config.training.microbatch_size, stages, config.schedule.cuts);
}

// What the configuration says besides must be what the file has; the stage graph is the model's.
plan::Schedule read_schedule(const Config& config) {
  const ScheduleConfig& wanted = config.schedule;
  const std::string file = wanted.file->string();
  const auto graph = [&](int stages) {
    try {
      return network_of(config, stages).graph;
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {} stages are not the model's: {}", file, stages, error.what()));
    }
  };
  plan::Schedule schedule = plan::schedule_from_text(read_file(file), file, graph).schedule;
  for (const auto& [key, asked, found] :
       {std::tuple{"schedule.workers", wanted.workers, schedule.workers()},
        {"schedule.stages", wanted.stages, schedule.stages()},
        {"training.microbatches", config.training.microbatches, schedule.microbatches()}}) {
    if (asked && *asked != found)
      throw InputError(fmt::format("{}: {}, but {} has {}", key, *asked, file, found));
  }
  if (schedule.graph() != graph(schedule.stages())) {
    throw InputError(fmt::format("{}: its stage graph is not the model's", file));
  }
  if (wanted.memory_limit) schedule = schedule.with(schedule.discipline());  // instead of the file's
  return wanted.recompute ? schedule.with_recomputation() : schedule;
}

void refuse_many_jobs(int stages, int microbatches) {
  constexpr std::int64_t most = 1'000'000;  // StarPU's bookkeeping for more would fill the memory
  if (std::int64_t{stages} * microbatches <= most) return;
  throw InputError(fmt::format(
      "training.microbatches: {} micro-batches of {} stages are too many jobs to run", microbatches, stages));
}

// As it was asked for besides, and proved to finish.
plan::Schedule finished(plan::Schedule schedule, const ScheduleConfig& wanted) {
  if (wanted.discipline || (wanted.memory_limit && schedule.memory_limits().empty())) {
    std::vector<int> limits(schedule.memory_limits().begin(), schedule.memory_limits().end());
    if (wanted.memory_limit) {
      limits.assign(static_cast<std::size_t>(schedule.workers()), *wanted.memory_limit);
    }
    schedule = schedule.with(wanted.discipline.value_or(plan::Discipline::bounded), std::move(limits));
  }
  if (const plan::CheckResult result = plan::check(schedule); !result.ok()) {
    throw InputError(fmt::format("schedule {}: {}", schedule.name(), result.problem));
  }
  return schedule;
}

// StarPU's vectors and MPI's messages count elements in 31 bits.
void refuse_large_stages(const model::Network& network) {
  constexpr std::uint64_t most = std::numeric_limits<std::int32_t>::max() * std::uint64_t{sizeof(float)};
  const std::vector<plan::StageSizes> sizes = network.sizes();
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const plan::StageSizes& size = sizes[s];
    for (const auto& [what, bytes] :
         {std::pair{"parameters", size.updated()}, std::pair{"output", size.activation},
          std::pair{"stash", size.stash}, std::pair{"gradient stash", size.gradient_stash}}) {
      if (bytes <= most) continue;
      throw InputError(
          fmt::format("schedule.stages: the {} of stage {} has {} bytes, at most {} fit one handle "
                      "(more stages, or a smaller training.microbatch_size)",
                      what, s, bytes, most));
    }
  }
}

plan::Costs emulated_costs(const EmulationConfig& wanted, const model::Network& network) {
  const std::size_t stages = network.stages.size();
  const auto of = [stages](const char* pass, const std::vector<double>& times, std::size_t stage) {
    if (times.size() != 1 && times.size() != stages) {
      throw InputError(fmt::format("runtime.emulate.{}: {} times for {} stages", pass, times.size(), stages));
    }
    return times[times.size() == 1 ? 0 : stage];
  };
  plan::Costs costs;
  costs.durations.clear();
  for (std::size_t s = 0; s < stages; ++s) {
    costs.durations.push_back(
        {.F = of("F", wanted.F, s), .B = of("B", wanted.B, s), .W = of("W", wanted.W, s)});
  }
  costs.sizes = network.sizes();
  costs.alpha = wanted.comm;
  costs.prefetch = wanted.prefetch;
  return costs;
}

}  // namespace

plan::Schedule build_schedule(const Config& config, const plan::StageGraph& graph,
                              const std::optional<plan::Costs>& costs) {
  plan::ScheduleRequest request;
  request.workers = config.schedule.workers.value();
  request.microbatches = config.training.microbatches.value();
  request.graph = graph;
  request.groups = config.schedule.groups;
  request.stage_workers = config.schedule.placement;
  request.recompute = config.schedule.recompute;
  request.costs = costs;
  if (costs && request.recompute) request.costs = plan::with_recomputation(*costs);
  request.memory_limit = config.schedule.memory_limit;
  return finished(plan::make_schedule(config.schedule.name, request), config.schedule);
}

plan::Costs costs_by_flops(const model::Network& network) {
  double total = 0;
  for (const model::Stage& stage : network.stages) total += stage.flops();
  plan::Costs costs;
  costs.durations.clear();
  for (const model::Stage& stage : network.stages) {
    const double share = total > 0 ? stage.flops() * static_cast<double>(network.stages.size()) / total : 1.0;
    costs.durations.push_back({share, share, share});
  }
  costs.sizes = network.sizes();
  return costs;
}

Plan make_plan(const Config& config) {
  std::optional<plan::Schedule> listed;
  if (config.schedule.file) listed = read_schedule(config);
  const std::size_t devices = config.runtime.device.size();
  if (listed && devices > 1 && std::cmp_not_equal(devices, listed->workers())) {
    throw InputError(fmt::format("runtime.device: {} devices for the {} workers of {}", devices,
                                 listed->workers(), config.schedule.file->string()));
  }
  const int stages = listed ? listed->stages() : stage_count(config);
  refuse_many_jobs(stages, listed ? listed->microbatches() : config.training.microbatches.value());
  model::Network network = network_of(config, stages);
  refuse_large_stages(network);
  std::optional<plan::Costs> emulated;
  if (config.runtime.emulate) emulated = emulated_costs(*config.runtime.emulate, network);
  plan::Schedule schedule = listed ? finished(*std::move(listed), config.schedule)
                                   : build_schedule(config, network.graph, emulated);
  const plan::Discipline discipline = schedule.discipline();
  if (discipline == plan::Discipline::ordered && config.schedule.dynamic) {
    throw InputError("schedule.dynamic: the ordered discipline leaves nothing to pick at run time");
  }
  plan::Costs costs = emulated ? *std::move(emulated) : costs_by_flops(network);
  if (schedule.recompute()) costs = plan::with_recomputation(std::move(costs));
  if (discipline != plan::Discipline::ordered && !config.schedule.dynamic) {
    schedule = plan::ordered_as_simulated(schedule, costs);
  }
  return {std::move(network), std::move(schedule), discipline, std::move(costs)};
}

Experiment make_experiment(const Config& config) {
  Plan plan = make_plan(config);
  auto data =
      model::make_dataset(config.data, config.model, config.training.microbatch_size, config.training.seed);
  require_memory(config, plan);
  std::optional<plan::Costs> emulated;
  if (config.runtime.emulate) emulated = std::move(plan.costs);
  return {std::move(plan.network), std::move(plan.schedule), plan.discipline, std::move(data),
          std::move(emulated)};
}

}  // namespace starpipe::runtime
