// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "experiment.hpp"
#include "starpipe/plan/error.hpp"
#include "starpipe/runtime/profile.hpp"

namespace starpipe::runtime {
namespace {

/// A profile from a file must be one of this model. Sizes are compared where the file has any.
void require_profile_of(const Config& config) {
  const std::vector<plan::LayerCosts>& profile = config.schedule.profile;
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
    const auto& [activation, gradient, stash, gradient_stash, weights] = profile[u].sizes;
    if (activation == 0 && stash == 0 && weights == 0) continue;
    for (const auto& [what, given, actual] : {std::tuple{"activation", activation, sizes[u].activation},
                                              {"stash", stash, sizes[u].stash},
                                              {"weights", weights, sizes[u].weights}}) {
      if (given == actual) continue;
      throw InputError(
          fmt::format("schedule.profile: {} is of another model or training.microbatch_size: {} of layer {} "
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
  for (int s = 0; s < graph.size(); ++s) placed.schedule.placement.push_back(s % config.schedule.workers);
  return can_be_built(placed, graph);
}

/// What there is to choose: cuts, and workers where the schedule does not say.
plan::PartitionRequest open_choice(const Config& config, const plan::StageGraph& graph) {
  plan::PartitionRequest request{.workers = config.schedule.workers};
  if (leaves_placement_open(config, graph)) {
    request.allocation = plan::Allocation::general;
    request.most_stages = graph.size();
    return request;
  }
  request.allocation = plan::Allocation::placed;
  const auto workers = plan::stage_workers_of(build_schedule(config, graph, std::nullopt));
  if (workers && graph.is_chain()) {
    request.stage_workers = *workers;
    return request;
  }
  // Replicas, or a leg of several that are cut alike.
  request.workers = graph.is_chain() ? graph.size() : (graph.size() - 1) / config.model.legs;
  request.stage_workers.resize(static_cast<std::size_t>(request.workers));
  std::iota(request.stage_workers.begin(), request.stage_workers.end(), 0);
  return request;
}

}  // namespace

void choose_partition(Config& config) {
  ScheduleConfig& wanted = config.schedule;
  const int stages = stage_count(config);
  const plan::StageGraph graph =
      model::build_network(config.model, config.training.microbatch_size, stages).graph;
  plan::PartitionRequest request = open_choice(config, graph);
  if (wanted.profile_file.empty()) {
    for (MeasuredLayer& layer : measure_layers(config)) wanted.profile.push_back(std::move(layer.costs));
  } else {
    require_profile_of(config);
  }
  request.layers = wanted.profile;
  plan::Partition chosen = plan::partition(request);
  if (request.allocation == plan::Allocation::general) {
    split_until(chosen, stages, static_cast<int>(request.layers.size()));
    wanted.placement = chosen.stage_workers;
  }
  wanted.cuts = chosen.cuts;
  wanted.chosen = std::move(chosen);
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
