// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/partition_choice.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/config/config_keys.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/search/search_problem.hpp"
#include "starpipe/plan/search/unit_costs.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::runtime {
namespace {

/// Refuses a profile whose units share other weights than the model's units. `has_sizes`: true if the file
/// has sizes. A file without sizes may also leave out shared weights.
void require_same_shared(const Config& config, const std::vector<plan::SharedUnits>& of_model,
                         bool has_sizes) {
  const std::vector<plan::SharedUnits>& of_file = config.profile.shared;
  if (of_file.empty() && !has_sizes) return;
  const auto alike = [](const plan::SharedUnits& a, const plan::SharedUnits& b) {  // names are for people
    return a.units == b.units && a.weights == b.weights && a.master == b.master;
  };
  if (std::ranges::equal(of_file, of_model, alike)) return;
  const auto text = [](const std::vector<plan::SharedUnits>& shared) {
    std::vector<std::string> sets;
    for (const plan::SharedUnits& set : shared)
      sets.push_back(fmt::format("units [{}] share {} bytes{}", fmt::join(set.units, ", "), set.weights,
                                 set.master > 0 ? fmt::format(" and a master of {}", set.master) : ""));
    return sets.empty() ? "no units share weights" : fmt::format("{}", fmt::join(sets, ", "));
  };
  throw InputError(fmt::format(
      "schedule.profile: {}: was measured with another model or runtime.precision: there {}, here {}",
      config.schedule.profile_file, text(of_file), text(of_model)));
}

/// Refuses a profile of another model. Sizes are compared where the file has any.
void require_profile_of_model(const Config& config) {
  const std::vector<plan::UnitCosts>& profile = config.profile.units;
  const std::string& file = config.schedule.profile_file;
  const std::vector<std::string> names = model::unit_names(config.model);
  if (profile.size() != names.size()) {
    throw InputError(fmt::format("schedule.profile: {} has {} units, the model has {}", file, profile.size(),
                                 names.size()));
  }
  const model::Network by_unit = model::build_units(config.model, config.training.microbatch_size);
  const std::vector<plan::StageSizes> sizes = by_unit.sizes();
  const auto has_sizes = [](const plan::UnitCosts& unit) {
    return unit.sizes.activation > 0 || unit.sizes.stash > 0 || unit.sizes.weights > 0;
  };
  require_same_shared(config, shared_units(by_unit), std::ranges::any_of(profile, has_sizes));
  for (std::size_t u = 0; u < names.size(); ++u) {
    const plan::StageSizes& of_file = profile[u].sizes;
    if (!has_sizes(profile[u])) continue;
    for (const auto& [what, given, actual] :
         {std::tuple{"activation", of_file.activation, sizes[u].activation},
          {"stash", of_file.stash, sizes[u].stash},
          {"weights", of_file.weights, sizes[u].weights}}) {
      if (given == actual) continue;
      throw InputError(
          fmt::format("schedule.profile: {}: was measured with another model, runtime.precision or "
                      "training.microbatch_size: {} of unit {} has {} bytes, here {} has {}",
                      file, what, u, given, names[u], actual));
    }
  }
}

/// Halves the stage with the most units until there are `stages` stages. Both halves stay on its worker.
void split_until(plan::Partition& partition, int stages, int units) {
  std::vector<int>& cuts = partition.cuts;
  while (static_cast<int>(cuts.size()) + 1 < stages) {
    const auto begin = [&](std::size_t s) { return s == 0 ? 0 : cuts[s - 1]; };
    const auto length = [&](std::size_t s) { return (s == cuts.size() ? units : cuts[s]) - begin(s); };
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

/// True if the schedule accepts the request and finishes.
bool can_be_built(const Config& config, const plan::ScheduleRequest& request) {
  try {
    build_schedule(config.schedule, request);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Returns the request with stage s on worker s mod W.
plan::ScheduleRequest looped(plan::ScheduleRequest request) {
  for (int s = 0; s < request.graph->size(); ++s) request.stage_workers.push_back(s % request.workers);
  return request;
}

/// True if the schedule can be built with a placement, and not without.
bool leaves_placement_open(const Config& config, const plan::ScheduleRequest& request) {
  if (!request.stage_workers.empty() || !request.graph->is_chain() || can_be_built(config, request))
    return false;
  return can_be_built(config, looped(request));
}

/// True if every F is computed again in the run: as configured, or because the schedule does so by itself.
/// Throws InputError where some are.
bool recomputes(const Config& config, const plan::ScheduleRequest& request) {
  const bool open = leaves_placement_open(config, request);
  const plan::Schedule schedule = build_schedule(config.schedule, open ? looped(request) : request).schedule;
  if (!schedule.recomputes()) return false;
  if (schedule.recomputes_all()) return true;
  throw InputError("schedule.partition: auto: needs one home for all stages (schedule.home)");
}

/// Returns a placement with stage s on worker s.
std::vector<int> one_worker_each(int stages) {
  std::vector<int> workers(index(stages));
  std::iota(workers.begin(), workers.end(), 0);
  return workers;
}

struct Candidate {
  plan::PartitionRequest request;
  bool own_workers = false;  ///< true if each stage has a worker of its own, not one of the schedule's
};

/// Returns one candidate if the schedule places its stages, so that only the cuts are open. Otherwise returns
/// one for each placement to try: the placement with the smallest bottleneck need not give the shortest run.
std::vector<Candidate> candidates(const Config& config, const plan::ScheduleRequest& request) {
  const plan::StageGraph& graph = *request.graph;
  const int workers = request.workers;
  const int stages = graph.size();
  const auto placed = [](std::vector<int> stage_workers, int of) {
    return plan::PartitionRequest{
        .workers = of, .allocation = plan::Allocation::placed, .stage_workers = std::move(stage_workers)};
  };
  if (!graph.is_chain()) {  // branches, which are all cut alike, and one stage that joins them
    const auto branches = static_cast<int>(graph.pred(stages - 1).size());
    const int each = (stages - 1) / branches;
    return {{placed(one_worker_each(each), each), true}};
  }
  if (!leaves_placement_open(config, request)) {
    const auto fixed = plan::stage_workers_of(build_schedule(config.schedule, request).schedule);
    if (fixed) return {{placed(*fixed, workers)}};
    return {{placed(one_worker_each(stages), stages), true}};
  }
  std::vector<Candidate> placements;
  placements.push_back({{.workers = workers, .allocation = plan::Allocation::general, .max_stages = stages}});
  if (stages > workers) placements.push_back({{.workers = workers}});
  if (stages % workers == 0) {
    for (const plan::Layout layout : {plan::Layout::loop, plan::Layout::v}) {
      placements.push_back({placed(plan::layout_workers(layout, workers, stages / workers), workers)});
    }
  }
  return placements;
}

/// Returns the kind of each worker's device, an index of plan::Profile::devices.
std::vector<int> kinds_of_workers(const Config& config, const plan::Profile& profile) {
  try {
    return profile.kinds_of(config.runtime.device, config.schedule.workers.value());
  } catch (const InputError& error) {
    throw InputError(fmt::format("schedule.profile: {} has {} (runtime.device)", config.schedule.profile_file,
                                 error.what()));
  }
}

/// Returns the kinds of the workers of a candidate. `kinds`: of the schedule's workers.
std::vector<int> kinds_of(const Candidate& candidate, const std::vector<int>& kinds) {
  if (!candidate.own_workers) return kinds;
  if (std::ranges::adjacent_find(kinds, std::not_equal_to()) != kinds.end()) {
    throw InputError(
        "schedule.partition: auto: with several kinds of devices, no stage may be on several workers");
  }
  return std::vector<int>(index(candidate.request.workers), kinds.front());
}

/// Returns the units' costs. With recomputation B includes F.
std::vector<plan::UnitCosts> costs_of(const plan::Profile& profile, bool recompute) {
  std::vector<plan::UnitCosts> units = profile.units;
  if (!recompute) return units;
  for (plan::UnitCosts& unit : units) {
    unit.time.B += unit.time.F;
    for (plan::Durations& other : unit.others) other.B += other.F;
  }
  return units;
}

/// Returns the kind of each stage's device. `kinds`: of the schedule's workers.
std::vector<int> kinds_of_stages(const plan::Partition& partition, const std::vector<int>& kinds) {
  std::vector<int> of_stages;
  for (const int worker : partition.stage_workers) {
    // A stage with a worker of its own may have a number beyond `kinds`. All devices are then of one kind.
    of_stages.push_back(index(worker) < kinds.size() ? kinds[index(worker)] : kinds.front());
  }
  return of_stages;
}

}  // namespace

int measured_slices(const plan::Profile& profile, const Config& config) {
  const int count = config.schedule.slices;
  const bool has_them = count > 1 && profile.slice_sizes == model::slice_sizes(model_with_slices(config));
  return has_them ? count : 1;
}

std::optional<PartitionChoice> choose_partition(const Config& config) {
  const ScheduleConfig& wanted = config.schedule;
  if (!wanted.partition) return std::nullopt;
  check_values(config);
  use_instructions(config);
  const int stages = stage_count(config);
  plan::ScheduleRequest schedule = schedule_request(
      config, model::build_network(config.model, config.training.microbatch_size, stages).graph);
  std::vector<Candidate> to_try = candidates(config, schedule);
  PartitionChoice choice;
  choice.profile_file = wanted.profile_file;
  choice.placement = wanted.placement;
  if (wanted.profile_file.empty()) {
    choice.profile = config.profile.units.empty() ? measure_units(config).profile : config.profile;
  } else {
    require_profile_of_model(config);
    choice.profile = config.profile;
  }
  const std::vector<int> kinds = kinds_of_workers(config, choice.profile);
  const std::vector<plan::UnitCosts> units = costs_of(choice.profile, recomputes(config, schedule));
  double shortest = std::numeric_limits<double>::infinity();
  for (Candidate& candidate : to_try) {
    candidate.request.units = units;
    candidate.request.shared = choice.profile.shared;
    candidate.request.kinds = kinds_of(candidate, kinds);
    plan::Partition found = plan::partition(candidate.request);
    if (to_try.size() > 1) split_until(found, stages, static_cast<int>(units.size()));
    std::vector<int> of_stages = kinds_of_stages(found, kinds);
    if (to_try.size() > 1) {
      schedule.stage_workers = found.stage_workers;
      const plan::Costs costs =
          plan::stage_costs(choice.profile.units, found.cuts, of_stages, choice.profile.shared,
                            measured_slices(choice.profile, config));
      const double makespan = plan::simulate(build_schedule(wanted, schedule).schedule, costs).makespan;
      if (makespan >= shortest) continue;
      shortest = makespan;
      choice.placement = found.stage_workers;
    }
    choice.partition = std::move(found);
    choice.stage_kinds = std::move(of_stages);
  }
  return choice;
}

Config with_partition(Config config, const PartitionChoice& choice) {
  config.schedule.cuts = choice.partition.cuts;
  config.schedule.placement = choice.placement;
  config.schedule.partition = false;
  config.schedule.profile_file.clear();
  config.profile = {};
  return config;
}

Config with_measured_times(Config config, const PartitionChoice& choice) {
  // With several branches the partition has the stages of one branch only.
  if (std::cmp_not_equal(choice.partition.cuts.size() + 1, stage_count(config)))
    throw InputError("schedule.partition: auto: the stages of several branches have no measured times");
  const plan::Costs costs =
      plan::stage_costs(choice.profile.units, choice.partition.cuts, choice.stage_kinds);
  return with_emulated_times(with_partition(std::move(config), choice), costs.durations);
}

std::string describe_partition(const std::optional<PartitionChoice>& choice) {
  if (!choice) return "";
  const auto& [profile, profile_file, partition, placement, stage_kinds] = *choice;
  double mean = 0;
  for (const plan::WorkerLoad& load : partition.loads) {
    mean += load.load() / static_cast<double>(partition.loads.size());
  }
  return fmt::format("cuts [{}]{} by {}: the busiest worker has {:.2f} times the mean work\n",
                     fmt::join(partition.cuts, ", "),
                     placement.empty() ? "" : fmt::format(", placement [{}],", fmt::join(placement, ", ")),
                     profile_file.empty() ? "measured times" : profile_file,
                     mean > 0 ? partition.bottleneck / mean : 1.0);
}

}  // namespace starpipe::runtime
