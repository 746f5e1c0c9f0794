// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/numbers.hpp"
#include "runtime/engine/memory_need.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::runtime {
namespace {

/// With more jobs, other schedules are not tried: a user would wait too long for the refusal.
constexpr std::size_t max_jobs_to_compare = 100'000;

/// The need of one worker, and its limit.
struct Need {
  int worker = 0;
  WorkerMemory memory;
  std::uint64_t limit = 0;

  /// Returns the bytes that the limit lacks; not positive if the need is within it. As a double, so that no
  /// limit is too large; exact below 2^53 bytes.
  [[nodiscard]] double excess() const {
    return static_cast<double>(memory.total()) - static_cast<double>(limit);
  }
};

/// The need and the duration of a schedule.
struct Outcome {
  std::string name;        ///< as a user writes it
  Need need;               ///< of the worker whose limit lacks most
  double makespan = 0;     ///< of `makespan_of`
  double stage_share = 1;  ///< what the emulated times were multiplied by
};

/// Returns the need of the worker whose limit lacks most.
Need worst_need(const Config& config, const Experiment& run, const plan::Timeline& timeline) {
  const std::vector<DeviceNeed> needs = memory_need_of(config, run, run.costs, timeline);
  const std::vector<std::uint64_t>& limits = config.runtime.memory_limits;
  if (limits.size() > 1 && limits.size() != needs.size()) {
    throw InputError(
        fmt::format("runtime.memory_limit: {} values for {} workers", limits.size(), needs.size()));
  }
  std::vector<Need> of_workers;
  for (std::size_t w = 0; w < needs.size(); ++w)
    of_workers.push_back(
        {static_cast<int>(w), needs[w].peak, *config.runtime.memory_limit_of(static_cast<int>(w))});
  return *std::ranges::max_element(of_workers, {}, &Need::excess);
}

/// Returns the duration of a step, in a unit that does not depend on the number of stages: with costs by
/// FLOPs the average stage lasts 1, whatever their number.
double makespan_of(const Experiment& run, const plan::Timeline& timeline) {
  return timeline.makespan / (run.emulated ? 1 : run.schedule.stages());
}

/// Returns the number of workers to ask a named schedule for, so that the run has as many in all.
int named_workers(const Config& config, const Experiment& run) {
  return run.schedule.workers() / config.workers_each();
}

/// Returns the configuration with another named schedule, for the same workers and micro-batches. Settings
/// with one value per stage (placement, cuts, emulated times) are dropped or scaled when the number of stages
/// differs. `stages`: of the schedule; shards are parts of them. `share`: of a stage's work, see Outcome.
Config with_schedule(const Config& config, const Experiment& run, const plan::ScheduleEntry& entry,
                     int stages, double share) {
  Config other = config;
  ScheduleConfig& schedule = other.schedule;
  schedule.file.reset();
  schedule.plugins.clear();  // they are loaded; `stage_count` refuses one without the schedule
  schedule.name = entry.name;
  schedule.options.clear();
  schedule.workers = named_workers(config, run);
  other.training.microbatches = run.schedule.whole_microbatches();
  schedule.stages = stages;
  schedule.discipline.reset();
  schedule.memory_limits.clear();
  schedule.dynamic = false;
  schedule.placement.clear();
  if (stages == run.network.whole_stages()) return other;
  schedule.cuts.clear();
  if (!other.runtime.emulate) return other;
  EmulationConfig& emulate = *other.runtime.emulate;
  for (std::vector<double>* times : {&emulate.F, &emulate.B, &emulate.W}) {
    for (double& time : *times) time *= share;
  }
  return other;
}

constexpr const char* recomputing = "schedule.home: none";

/// Returns all runs with the same workers and micro-batches: first the configured schedule with
/// recomputation, unless it recomputes already, then the named schedules without and with it.
std::vector<Outcome> alternatives(const Config& config, const Experiment& run) {
  std::vector<Outcome> found;
  const auto add = [&](std::string name, bool recompute, Config other, double share) {
    try {
      other.schedule.home_way.clear();
      other.schedule.homes = {recompute ? plan::Home::none : plan::Home::worker};
      const Experiment planned = plan_run(other);
      const plan::Timeline timeline = plan::simulate(planned.schedule, planned.costs);
      found.push_back({.name = std::move(name),
                       .need = worst_need(other, planned, timeline),
                       .makespan = makespan_of(planned, timeline),
                       .stage_share = share});
    } catch (const InputError&) {  // the schedule lacks an option, or the model has too few units
    }
  };
  if (!run.schedule.recomputes_all()) add(recomputing, true, config, 1);
  if (run.schedule.job_count() > max_jobs_to_compare) return found;
  // A file may have any number of workers, and a named schedule has D for each of its own.
  if (run.schedule.workers() % config.workers_each() != 0) return found;
  const bool times_of_stages = config.runtime.emulate && !config.runtime.emulate->per_share;
  for (const plan::ScheduleEntry& entry : plan::schedule_entries()) {
    if (entry.name == run.schedule.name() && !config.schedule.file) continue;  // tried above
    const int own = run.network.whole_stages();
    const int stages = plan::default_stages(entry, named_workers(config, run), {}, config.schedule.groups);
    const double share = times_of_stages ? static_cast<double>(own) / stages : 1;
    std::string name = "schedule.name: " + entry.name;
    if (stages != own) name += fmt::format(", stages: {}", stages);
    const Config other = with_schedule(config, run, entry, stages, share);
    add(name, false, other, share);
    add(name + ", home: none", true, other, share);
  }
  return found;
}

std::string parts_text(const WorkerMemory& memory) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] : memory_parts) {
    if (memory.*bytes > 0) parts.push_back(fmt::format("{} {}", name, bytes_text(memory.*bytes)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Returns a sentence that tells which runs would fit.
std::string advice(const Config& config, const Experiment& run, double makespan) {
  const std::vector<Outcome> all = alternatives(config, run);
  const auto described = [makespan](const Outcome& o) {
    const std::string times = o.stage_share == 1 ? ""
                                                 : fmt::format(" if its stages take {} of the emulated times",
                                                               number_text(o.stage_share));
    return fmt::format("{} ({}, {:.2f} times the makespan{})", o.name, bytes_text(o.need.memory.total()),
                       makespan > 0 ? o.makespan / makespan : 1.0, times);
  };
  std::vector<Outcome> fitting;
  std::ranges::copy_if(all, std::back_inserter(fitting),
                       [](const Outcome& o) { return o.need.excess() <= 0; });
  const auto faster = [](const Outcome& a, const Outcome& b) {
    return std::pair(a.makespan, a.need.excess()) < std::pair(b.makespan, b.need.excess());
  };
  if (const auto fastest = std::ranges::min_element(fitting, faster); fastest != fitting.end()) {
    const bool own = fitting.front().name == recomputing;
    if (own && fastest == fitting.begin()) return "it fits with " + described(*fastest) + ", the fastest";
    return (own ? "it fits with " + described(fitting.front()) + "; " : "") + "the fastest that fits is " +
           described(*fastest);
  }
  if (run.schedule.job_count() > max_jobs_to_compare)
    return "it does not fit with schedule.home: none either";
  std::string text =
      "no named schedule fits with this number of workers and micro-batches, with or without recomputation";
  const auto excess = [](const Outcome& o) { return o.need.excess(); };
  if (const auto min = std::ranges::min_element(all, {}, excess); min != all.end()) {
    text += "; the least is " + described(*min);
  }
  return text;
}

}  // namespace

std::vector<DeviceNeed> memory_need_of(const Config& config, const Experiment& experiment,
                                       const plan::Costs& costs, const plan::Timeline& timeline,
                                       WorkerDevices workers) {
  const plan::Schedule& schedule = experiment.schedule;
  workers.on_gpu = config.runtime.on_gpu_of(schedule.workers());
  if (!config.evaluate.alone)
    return memory_need_over_time(schedule, experiment.network, config.training.optimizer, costs, timeline,
                                 workers, experiment.rules);
  std::vector<DeviceNeed> needs;
  for (const WorkerMemory& peak :
       evaluation_memory_need(schedule, experiment.network, costs, experiment.rules.evaluated, workers))
    needs.push_back({.peak = peak, .over_time = {}});
  return needs;
}

void require_memory(const Config& config, const Experiment& run) {
  if (config.runtime.memory_limits.empty()) return;
  const plan::Timeline timeline = plan::simulate(run.schedule, plan::with_known_copies(run.costs));
  const Need worst = worst_need(config, run, timeline);
  if (worst.excess() <= 0) return;
  const auto& [worker, memory, limit] = worst;
  const auto [need, given] = bytes_texts(memory.total(), limit);
  std::string problem = fmt::format("runtime.memory_limit: under {}, worker {} needs {} ({}), more than {}",
                                    run.schedule.name(), worker, need, parts_text(memory), given);
  // The advice is on what a training step keeps between F and B.
  if (!config.evaluate.alone) problem += "; " + advice(config, run, makespan_of(run, timeline));
  throw InputError(problem);
}

}  // namespace starpipe::runtime
