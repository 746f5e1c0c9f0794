// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/setup/partition_choice.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/setup/planned_run.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/partition/schedule_demands.hpp"
#include "starpipe/plan/search/layout.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/setup/profile.hpp"

namespace starpipe::runtime {
namespace {

/// A profile from a file must be one of this model. Sizes are compared where the file has any.
void require_profile_of(const Config& config) {
  const std::vector<plan::UnitCosts>& profile = config.schedule.profile.units;
  const std::string& file = config.schedule.profile_file;
  const std::vector<std::string> names = model::unit_names(config.model);
  if (profile.size() != names.size()) {
    throw InputError(fmt::format("schedule.profile: {} has {} layers, the model has {} units", file,
                                 profile.size(), names.size()));
  }
  const int legs = config.model.legs;
  const auto units = static_cast<int>(names.size());
  const std::vector<plan::StageSizes> sizes =
      model::build_network(config.model, config.training.microbatch_size, legs > 1 ? legs * units + 1 : units)
          .sizes();
  for (std::size_t u = 0; u < names.size(); ++u) {
    const plan::StageSizes& of_file = profile[u].sizes;
    if (of_file.activation == 0 && of_file.stash == 0 && of_file.weights == 0) continue;
    for (const auto& [what, given, actual] :
         {std::tuple{"activation", of_file.activation, sizes[u].activation},
          {"stash", of_file.stash, sizes[u].stash},
          {"weights", of_file.weights, sizes[u].weights}}) {
      if (given == actual) continue;
      throw InputError(
          fmt::format("schedule.profile: {} is of another model, runtime.precision or "
                      "training.microbatch_size: {} of layer {} "
                      "has {} bytes, "
                      "here {} has {}",
                      file, what, u, given, names[u], actual));
    }
  }
}

/// Cuts stages, those of most layers first, until there are as many as the schedule has.
void split_until(plan::Partition& partition, int stages, int layers) {
  std::vector<int>& cuts = partition.cuts;
  while (static_cast<int>(cuts.size()) + 1 < stages) {
    const auto begin = [&](std::size_t s) { return s == 0 ? 0 : cuts[s - 1]; };
    const auto length = [&](std::size_t s) { return (s == cuts.size() ? layers : cuts[s]) - begin(s); };
    std::size_t longest = 0;
    for (std::size_t s = 1; s <= cuts.size(); ++s) {
      if (length(s) > length(longest)) longest = s;
    }
    const auto at = static_cast<std::ptrdiff_t>(longest);
    const int cut = begin(longest) + length(longest) / 2;
    const int worker = partition.stage_workers[longest];
    cuts.insert(cuts.begin() + at, cut);
    partition.stage_workers.insert(partition.stage_workers.begin() + at, worker);
  }
}

bool can_be_built(const Config& config, const plan::StageGraph& graph) {
  try {
    build_schedule(config, graph, std::nullopt);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Whether the schedule needs a placement and takes any.
bool leaves_placement_open(const Config& config, const plan::StageGraph& graph) {
  if (!config.schedule.placement.empty() || !graph.is_chain() || can_be_built(config, graph)) return false;
  Config placed = config;
  for (int s = 0; s < graph.size(); ++s)
    placed.schedule.placement.push_back(s % config.schedule.workers.value());
  return can_be_built(placed, graph);
}

std::vector<int> one_worker_each(int stages) {
  std::vector<int> workers(static_cast<std::size_t>(stages));
  std::iota(workers.begin(), workers.end(), 0);
  return workers;
}

struct Choice {
  plan::PartitionRequest request;
  bool apart = false;  ///< its workers are not the schedule's: each stage has one of its own
};

/// What there is to choose from: cuts alone where the schedule says where its stages are, else placements
/// too, since the smallest bottleneck need not be the shortest run.
std::vector<Choice> choices(const Config& config, const plan::StageGraph& graph) {
  const int workers = config.schedule.workers.value();
  const int stages = graph.size();
  const auto placed = [](std::vector<int> stage_workers, int of) {
    return plan::PartitionRequest{
        .workers = of, .allocation = plan::Allocation::placed, .stage_workers = std::move(stage_workers)};
  };
  if (!graph.is_chain()) {  // legs, which are cut alike
    const int each = (stages - 1) / config.model.legs;
    return {{placed(one_worker_each(each), each), true}};
  }
  if (!leaves_placement_open(config, graph)) {
    const auto fixed = plan::stage_workers_of(build_schedule(config, graph, std::nullopt));
    if (fixed) return {{placed(*fixed, workers)}};
    return {{placed(one_worker_each(stages), stages), true}};
  }
  std::vector<Choice> requests;
  requests.push_back({{.workers = workers, .allocation = plan::Allocation::general, .most_stages = stages}});
  if (stages > workers) requests.push_back({{.workers = workers}});
  if (stages % workers == 0) {
    for (const plan::Layout layout : {plan::Layout::loop, plan::Layout::v}) {
      requests.push_back({placed(plan::layout_workers(layout, workers, stages / workers), workers)});
    }
  }
  return requests;
}

/// The schedule's makespan with these stages. `kinds`: by worker.
double predicted(const Config& config, const plan::StageGraph& graph, const plan::Partition& partition,
                 const std::vector<plan::UnitCosts>& layers, const std::vector<int>& kinds) {
  Config placed = config;
  placed.schedule.placement = partition.stage_workers;
  std::vector<int> of_stages;
  for (const int worker : partition.stage_workers)
    of_stages.push_back(kinds[static_cast<std::size_t>(worker)]);
  return plan::simulate(build_schedule(placed, graph, std::nullopt),
                        plan::stage_costs(layers, partition.cuts, of_stages))
      .makespan;
}

/// By worker of the schedule.
std::vector<int> kinds_of_workers(const Config& config) {
  try {
    return config.schedule.profile.kinds_of(config.runtime.device, config.schedule.workers.value());
  } catch (const InputError& error) {
    throw InputError(fmt::format("schedule.profile: {} has {} (runtime.device)", config.schedule.profile_file,
                                 error.what()));
  }
}

std::vector<int> kinds_of(const Choice& choice, const std::vector<int>& kinds) {
  if (!choice.apart) return kinds;
  if (std::ranges::adjacent_find(kinds, std::not_equal_to()) != kinds.end()) {
    throw InputError(
        "schedule.partition: auto: with several kinds of runtime.device each stage must be on one worker");
  }
  return std::vector<int>(static_cast<std::size_t>(choice.request.workers), kinds.front());
}

}  // namespace

void choose_partition(Config& config) {
  ScheduleConfig& wanted = config.schedule;
  const int stages = stage_count(config);
  const plan::StageGraph graph =
      model::build_network(config.model, config.training.microbatch_size, stages).graph;
  std::vector<Choice> requests = choices(config, graph);
  if (wanted.profile_file.empty()) {
    wanted.profile = measure_layers(config).profile;
  } else {
    require_profile_of(config);
  }
  const std::vector<int> kinds = kinds_of_workers(config);
  std::vector<plan::UnitCosts> layers = wanted.profile.units;
  for (plan::UnitCosts& layer : layers) {
    if (!wanted.recompute) break;
    layer.time.B += layer.time.F;
    for (plan::Durations& other : layer.others) other.B += other.F;
  }
  double shortest = std::numeric_limits<double>::infinity();
  for (Choice& choice : requests) {
    plan::PartitionRequest& request = choice.request;
    request.units = layers;
    request.kinds = kinds_of(choice, kinds);
    plan::Partition found = plan::partition(request);
    if (requests.size() > 1) {
      split_until(found, stages, static_cast<int>(request.units.size()));
      const double makespan = predicted(config, graph, found, layers, kinds);
      if (makespan >= shortest) continue;
      shortest = makespan;
      wanted.placement = found.stage_workers;
    }
    wanted.cuts = found.cuts;
    wanted.chosen = std::move(found);
  }
}

std::vector<int> stage_kinds(const Config& config) {
  const std::vector<int> of_workers = kinds_of_workers(config);
  std::vector<int> kinds;
  for (const int worker : config.schedule.chosen.value().stage_workers) {
    const auto w = static_cast<std::size_t>(worker);
    kinds.push_back(w < of_workers.size() ? of_workers[w] : of_workers.front());  // all alike
  }
  return kinds;
}

std::string describe_partition(const Config& config) {
  const ScheduleConfig& schedule = config.schedule;
  if (!schedule.chosen) return "";
  const plan::Partition& chosen = *schedule.chosen;
  double mean = 0;
  for (const plan::WorkerLoad& load : chosen.loads)
    mean += load.load() / static_cast<double>(chosen.loads.size());
  return fmt::format(
      "cuts [{}]{} by {}: the busiest worker has {:.2f} times the mean work\n",
      fmt::join(schedule.cuts, ", "),
      schedule.placement.empty() ? "" : fmt::format(", placement [{}],", fmt::join(schedule.placement, ", ")),
      schedule.profile_file.empty() ? "measured times" : schedule.profile_file,
      mean > 0 ? chosen.bottleneck / mean : 1.0);
}

}  // namespace starpipe::runtime
