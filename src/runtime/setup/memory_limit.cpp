// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/memory_limit.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/setup/planned_run.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/numbers.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/step/memory_need.hpp"

namespace starpipe::runtime {
namespace {

/// Above, other schedules are not tried: it would take longer than a user waits for a refusal.
constexpr std::size_t most_jobs_to_compare = 100'000;

struct Need {
  int worker = 0;  ///< that needs the most
  WorkerMemory memory;
};

/// How a schedule would do.
struct Outcome {
  std::string name;  ///< as a user asks for it
  std::uint64_t bytes = 0;
  double makespan = 0;  ///< in a unit that does not depend on the number of stages
};

Need largest_need(const Config& config, const Plan& plan, const plan::Timeline& timeline) {
  const std::vector<WorkerMemory> needs =
      memory_need(plan.schedule, plan.network, config.training.optimizer, plan.costs, timeline,
                  {.devices = {}, .on_gpu = config.runtime.on_gpu_of(plan.schedule.workers())});
  const auto most = std::ranges::max_element(needs, {}, &WorkerMemory::total);
  return {static_cast<int>(most - needs.begin()), *most};
}

Outcome outcome_of(const Config& config, const Plan& plan, std::string name) {
  const plan::Timeline timeline = plan::simulate(plan.schedule, plan.costs);
  // By FLOPs, an average stage lasts 1, however many there are.
  const double unit = config.runtime.emulate ? 1 : plan.schedule.stages();
  return {std::move(name), largest_need(config, plan, timeline).memory.total(), timeline.makespan / unit};
}

/// Nothing for what cannot be built: an option that is missing, a model that has too few layers.
std::optional<Outcome> try_plan(const Config& config, const std::string& name) {
  try {
    return outcome_of(config, make_plan(config), name);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

/// The same work in other stages: as long in total.
void scale(EmulationConfig& emulate, double factor) {
  for (std::vector<double>* times : {&emulate.F, &emulate.B, &emulate.W}) {
    for (double& time : *times) time *= factor;
  }
}

/// The configuration with another named schedule, at the same workers and micro-batches. What is said of the
/// configured one's stages goes where they are not as many.
Config with_schedule(const Config& config, const Plan& plan, const plan::ScheduleEntry& entry) {
  Config other = config;
  ScheduleConfig& schedule = other.schedule;
  const int workers = plan.schedule.workers();
  const int stages = entry.stages_per_worker * workers;
  schedule.file.reset();
  schedule.name = entry.name;
  schedule.workers = workers;
  other.training.microbatches = plan.schedule.microbatches();
  schedule.stages = stages;
  schedule.discipline.reset();
  schedule.memory_limit.reset();
  schedule.dynamic = false;
  schedule.placement.clear();
  if (stages == plan.schedule.stages()) return other;
  schedule.cuts.clear();
  if (other.runtime.emulate) {
    scale(*other.runtime.emulate, static_cast<double>(plan.schedule.stages()) / stages);
  }
  return other;
}

constexpr const char* recomputing = "schedule.recompute: true";

/// All that can be had at the same workers and micro-batches; first the configured schedule with
/// recomputation, where it has none.
std::vector<Outcome> alternatives(const Config& config, const Plan& plan) {
  std::vector<Outcome> found;
  const auto add = [&found](const Config& other, const std::string& name) {
    if (auto outcome = try_plan(other, name)) found.push_back(*std::move(outcome));
  };
  if (!plan.schedule.recompute()) {
    Config other = config;
    other.schedule.recompute = true;
    add(other, recomputing);
  }
  if (plan.schedule.job_count() > most_jobs_to_compare) return found;
  for (const plan::ScheduleEntry& entry : plan::schedule_entries()) {
    Config other = with_schedule(config, plan, entry);
    const bool is_same = entry.name == plan.schedule.name();
    std::string name = "schedule.name: " + entry.name;
    if (*other.schedule.stages != plan.schedule.stages()) {
      name += fmt::format(", stages: {}", *other.schedule.stages);
    }
    for (const bool recompute : {false, true}) {
      if (is_same && !config.schedule.file) continue;  // tried above
      other.schedule.recompute = recompute;
      add(other, recompute ? name + ", recompute: true" : name);
    }
  }
  return found;
}

std::string parts_text(const WorkerMemory& memory) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] :
       {std::pair{"weights", memory.weights}, std::pair{"gradients", memory.gradients},
        std::pair{"optimizer", memory.optimizer}, std::pair{"stashes", memory.stashes},
        std::pair{"activations", memory.activations}, std::pair{"workspace", memory.workspace}}) {
    if (bytes > 0) parts.push_back(fmt::format("{} {}", name, bytes_text(bytes)));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// What would fit, in words.
std::string advice(const Config& config, const Plan& plan, double makespan) {
  const std::vector<Outcome> all = alternatives(config, plan);
  const std::uint64_t limit = *config.runtime.memory_limit;
  const auto described = [makespan](const Outcome& o) {
    return fmt::format("{} ({}, {:.2f} times the makespan)", o.name, bytes_text(o.bytes),
                       makespan > 0 ? o.makespan / makespan : 1.0);
  };
  std::vector<Outcome> fitting;
  std::ranges::copy_if(all, std::back_inserter(fitting),
                       [limit](const Outcome& o) { return o.bytes <= limit; });
  const auto faster = [](const Outcome& a, const Outcome& b) {
    return std::pair(a.makespan, a.bytes) < std::pair(b.makespan, b.bytes);
  };
  if (const auto fastest = std::ranges::min_element(fitting, faster); fastest != fitting.end()) {
    const bool own = fitting.front().name == recomputing;
    if (own && fastest == fitting.begin()) return "it fits with " + described(*fastest) + ", the fastest";
    return (own ? "it fits with " + described(fitting.front()) + "; " : "") + "the fastest that fits is " +
           described(*fastest);
  }
  if (plan.schedule.job_count() > most_jobs_to_compare)
    return "nor does it fit with schedule.recompute: true";
  std::string text =
      "no named schedule fits at as many workers and micro-batches, with or without recomputation";
  if (const auto least = std::ranges::min_element(all, {}, &Outcome::bytes); least != all.end()) {
    text += "; the least is " + described(*least);
  }
  return text;
}

}  // namespace

void require_memory(const Config& config, const Plan& plan) {
  if (!config.runtime.memory_limit) return;
  const plan::Timeline timeline = plan::simulate(plan.schedule, plan.costs);
  const auto [worker, memory] = largest_need(config, plan, timeline);
  const std::uint64_t limit = *config.runtime.memory_limit;
  if (memory.total() <= limit) return;
  std::string need = bytes_text(memory.total());
  std::string given = bytes_text(limit);
  if (need == given) {  // but for what rounding hides
    need = fmt::format("{} bytes", memory.total());
    given = fmt::format("{} bytes", limit);
  }
  const double unit = config.runtime.emulate ? 1 : plan.schedule.stages();
  throw InputError(fmt::format("runtime.memory_limit: under {}, worker {} needs {} ({}), more than {}; {}",
                               plan.schedule.name(), worker, need, parts_text(memory), given,
                               advice(config, plan, timeline.makespan / unit)));
}

}  // namespace starpipe::runtime
