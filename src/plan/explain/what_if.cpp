// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/what_if.hpp"

#include <algorithm>
#include <array>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/numbers.hpp"
#include "plan/explain/step_costs.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

[[noreturn]] void refuse(std::string_view text, std::string_view problem) {
  throw InputError(fmt::format("what-if {}: {}", text, problem));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

int parse_index(std::string_view text, std::string_view number) {
  std::errc error{};
  const auto value = parse_number<int>(number, error);
  if (!value || error != std::errc{} || *value < 0) {
    refuse(text, fmt::format("'{}' is not a whole number from 0", number));
  }
  return *value;
}

double parse_factor(std::string_view text, std::string_view value) {
  if (value == "0") return 0;
  std::errc error{};
  const auto factor = value.ends_with('x') ? parse_number<double>(value.substr(0, value.size() - 1), error)
                                           : std::optional<double>{};
  constexpr Interval factors = {.min = 0, .max = 1e6};
  if (!factor || error != std::errc{} || !factors.contains(*factor)) {
    refuse(text, fmt::format("'{}' is not a factor such as 0.5x, {}", value, factors.text()));
  }
  return *factor;
}

// Reads what stands before the =.
void parse_target(std::string_view name, WhatIf& change) {
  const auto parts = split(name, '.');
  const std::string_view kind = parts.front();
  const bool takes_median = kind == "worker" || kind == "stage";
  if (parts.size() == 1 && kind == "comm") {
    change.target = WhatIf::Target::comm;
  } else if (parts.size() == 1 && kind == "runtime") {
    change.target = WhatIf::Target::runtime;
  } else if (parts.size() == 1 && kind == "copy") {
    change.target = WhatIf::Target::copy;
  } else if (parts.size() == 1 && kind == "schedule") {
    change.target = WhatIf::Target::schedule;
  } else if (parts.size() == 2 && kind == "link") {
    const auto workers = split(parts[1], '-');
    if (workers.size() != 2) refuse(change.text, "a link is two workers, such as link.0-1");
    change.target = WhatIf::Target::link;
    change.first = parse_index(change.text, workers[0]);
    change.second = parse_index(change.text, workers[1]);
  } else if (takes_median && parts.size() >= 2 && parts.size() <= (kind == "stage" ? 3U : 2U)) {
    change.target = kind == "stage" ? WhatIf::Target::stage : WhatIf::Target::worker;
    change.first = parse_index(change.text, parts[1]);
    if (parts.size() == 3) {
      const auto pass = std::ranges::find(pass_words, parts[2]);
      if (pass == pass_words.end())
        refuse(change.text, fmt::format("'{}' is not a pass: {}", parts[2], fmt::join(pass_words, ", ")));
      change.pass = static_cast<Pass>(pass - pass_words.begin());
    }
  } else {
    refuse(change.text, fmt::format("'{}' is not one of comm, link.N-N, worker.N, stage.N, stage.N.PASS, "
                                    "copy, runtime and schedule",
                                    name));
  }
}

bool changes(const RecordedStep& step, const WhatIf& change, JobId id) {
  const Job job = step.as_run.job(id);
  switch (change.target) {
    case WhatIf::Target::worker:
      return step.as_run.compute(id) == change.first && !is_copy(job.pass);
    case WhatIf::Target::stage:
      return job.stage == change.first && (change.pass ? *change.pass == job.pass : !is_copy(job.pass));
    case WhatIf::Target::copy:
      return is_copy(job.pass);
    case WhatIf::Target::link:
      return step.as_run.compute(id) == change.second &&
             last_input(step.as_run, step.timeline, id).from == change.first;
    case WhatIf::Target::comm:
      return true;
    case WhatIf::Target::runtime:
    case WhatIf::Target::schedule:
      break;
  }
  return false;
}

constexpr std::string_view no_own_durations = "the run has pairs, whose jobs have no durations of their own";

// Returns, by pass, the median time of a unit of work over all jobs; 0 when the work is not known.
std::array<double, pass_count> median_speeds(const RecordedStep& step, std::span<const Durations> work) {
  std::array<std::vector<double>, pass_count> times;
  for (const JobId id : step.as_run.order()) {
    const Job job = step.as_run.job(id);
    const Span& span = step.timeline.spans[id];
    const double amount = work_of(work, job.stage, job.pass);
    if (amount > 0) times[index(job.pass)].push_back((span.end - span.start) / amount);
  }
  std::array<double, pass_count> speeds = {};
  for (std::size_t pass = 0; pass < pass_count; ++pass) {
    speeds[pass] = lower_median(times[pass]).value_or(0);
  }
  return speeds;
}

void change_times(const RecordedStep& step, const WhatIf& change, std::span<const Durations> work,
                  JobTimes& times) {
  const bool of_links = change.target == WhatIf::Target::comm || change.target == WhatIf::Target::link;
  std::vector<double>& changed = of_links ? times.transfer : times.duration;
  if (!change.factor && !of_links && step.as_run.has_pairs()) refuse(change.text, no_own_durations);
  if (!change.factor && !of_links && step.as_run.slices() > 1)
    refuse(change.text, "median compares stages, and does not know how much work their slices are");
  const auto medians = change.factor ? std::array<double, pass_count>{} : median_speeds(step, work);
  for (const JobId id : step.as_run.order()) {
    if (!changes(step, change, id)) continue;
    const Job job = step.as_run.job(id);
    const double amount = work_of(work, job.stage, job.pass);
    if (change.factor) {
      changed[id] *= *change.factor;
    } else if (amount > 0) {
      changed[id] = amount * medians[index(job.pass)];
    }
  }
}

double simulated_makespan(const RecordedStep& step, const JobTimes& times) {
  Costs costs;
  costs.prefetch = step.prefetch;
  if (step.as_run.has_pairs()) costs.overlap = Overlap{};  // `times` has the durations
  return simulated_makespan(step.as_run, costs, times);
}

// Returns the part of the step that the simulation does not model.
double runtime_part(const RecordedStep& step) {
  return step.timeline.makespan - simulated_makespan(step, step.times(true));
}

}  // namespace

WhatIf parse_what_if(std::string_view text) {
  WhatIf change;
  change.text = text;
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) refuse(text, "a change is TARGET=VALUE, such as comm=0");
  const std::string_view value = text.substr(equals + 1);
  parse_target(text.substr(0, equals), change);
  if (value.empty()) refuse(text, "the value after = is missing");
  if (change.target == WhatIf::Target::schedule) {
    change.schedule = value;
    return change;
  }
  const bool of_jobs = change.target == WhatIf::Target::worker || change.target == WhatIf::Target::stage;
  if (value == "median" && of_jobs) return change;
  if (value == "median") refuse(text, "only worker.N and stage.N take the value median");
  change.factor = parse_factor(text, value);
  return change;
}

namespace {

void require_in_step(const WhatIf& change, const RecordedStep& step) {
  const auto require_worker = [&](int worker) {
    if (worker < step.as_run.workers()) return;
    refuse(change.text,
           fmt::format("there is no worker {} (workers 0..{})", worker, step.as_run.workers() - 1));
  };
  if (change.target == WhatIf::Target::worker || change.target == WhatIf::Target::link) {
    require_worker(change.first);
  }
  if (change.target == WhatIf::Target::link) require_worker(change.second);
  if (change.target == WhatIf::Target::stage && change.first >= step.as_run.stages()) {
    refuse(change.text,
           fmt::format("there is no stage {} (stages 0..{})", change.first, step.as_run.stages() - 1));
  }
  const bool of_times = change.target == WhatIf::Target::worker || change.target == WhatIf::Target::stage ||
                        change.target == WhatIf::Target::link || change.target == WhatIf::Target::copy;
  if (!of_times) return;
  const bool found =
      std::ranges::any_of(step.as_run.order(), [&](JobId id) { return changes(step, change, id); });
  if (!found) refuse(change.text, "nothing in the step would change");
}

}  // namespace

double makespan_with(const RecordedStep& step, const WhatIf& change, std::span<const Durations> work) {
  require_in_step(change, step);
  JobTimes times = step.times(true);
  if (change.target == WhatIf::Target::runtime) {
    const double simulated = simulated_makespan(step, times);
    return simulated + *change.factor * (step.timeline.makespan - simulated);
  }
  require_work(step.as_run, work);
  change_times(step, change, work, times);
  return simulated_makespan(step, times) + runtime_part(step);
}

void divide_backward(Durations& times, const Durations& work) {
  const double fused = work.of(Pass::BW);
  if (times.W > 0 || fused <= 0) return;
  times.W = times.B * work.W / fused;
  times.B -= times.W;
}

bool splits_fused_backward(const RecordedStep& step, const Schedule& other) {
  for (const JobId id : step.planned.order()) {
    const Job job = step.planned.job(id);
    if (job.pass == Pass::BW && other.split_backward(job.stage, job.microbatch)) return true;
  }
  return false;
}

double makespan_under(const RecordedStep& step, const Schedule& other, std::span<const Durations> work,
                      std::string_view text) {
  const Schedule& planned = step.planned;
  const auto require_equal = [&](int needed, int measured, std::string_view noun) {
    if (needed == measured) return;
    refuse(text, fmt::format("schedule {} has {} {}, the run {}", other.name(), needed, noun, measured));
  };
  require_equal(other.stages(), planned.stages(), "stages");
  require_equal(other.workers(), planned.workers(), "workers");
  require_equal(other.microbatches(), planned.microbatches(), "micro-batches");
  require_equal(other.slices(), planned.slices(), "slices");
  if (planned.has_pairs()) refuse(text, no_own_durations);
  StepCosts step_costs;
  step_costs.add(step);
  Costs costs = step_costs.costs();
  require_work(planned, work);
  if (splits_fused_backward(step, other)) {
    for (std::size_t s = 0; s < costs.durations.size(); ++s)
      divide_backward(costs.durations[s], work[work.size() == 1 ? 0 : s / index(costs.slices)]);
  }
  return simulated_makespan(other, costs) + runtime_part(step);
}

}  // namespace starpipe::plan
