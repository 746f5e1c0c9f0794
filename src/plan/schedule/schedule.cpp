// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/schedule.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::plan {
namespace {

void check_memory_limits(const std::string& name, int workers, const std::vector<int>& limits) {
  if (limits.empty() || limits.size() == index(workers)) return;
  throw InputError(fmt::format("{}: {} memory limits for {} workers", name, limits.size(), workers));
}

}  // namespace

std::string_view to_string(Discipline discipline) { return discipline_words[index(discipline)]; }

Discipline parse_discipline(std::string_view word) {
  for (const auto discipline : {Discipline::greedy, Discipline::bounded, Discipline::ordered}) {
    if (word == to_string(discipline)) return discipline;
  }
  throw InputError(fmt::format("unknown discipline '{}' (greedy, bounded or ordered)", word));
}

std::string_view to_string(Home home) { return home_words[index(home)]; }

Home parse_home(std::string_view word) {
  for (const Home home : {Home::worker, Home::none}) {
    if (word == to_string(home)) return home;
  }
  throw InputError(fmt::format("unknown home '{}' ({})", word, fmt::join(home_words, " or ")));
}

std::vector<Schedule::Passes> Schedule::passes_of(const ScheduleSpec& spec) {
  std::vector<Passes> passes(index(spec.graph.size()) * index(spec.microbatches));
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const int stage = static_cast<int>(i % index(spec.graph.size()));
    const int microbatch = static_cast<int>(i / index(spec.graph.size()));
    if (spec.split_backward) passes[i].split = spec.split_backward(stage, microbatch);
    if (spec.home) passes[i].has_home = spec.home(stage, microbatch) != Home::none;
  }
  return passes;
}

Schedule::Schedule(const ScheduleSpec& spec, bool forward_only)
    : name_(spec.name),
      graph_(spec.graph),
      microbatches_(spec.microbatches),
      workers_(spec.workers),
      late_recomputation_(spec.late_recomputation),
      discipline_(spec.discipline),
      memory_limits_(spec.memory_limits) {
  if (microbatches_ < 1)
    throw InputError(fmt::format("{}: {} micro-batches, need at least 1", name_, microbatches_));
  if (workers_ < 1) throw InputError(fmt::format("{}: {} workers, need at least 1", name_, workers_));
  if (!spec.placement || !spec.priority) throw InputError(name_ + ": a schedule needs w and n");
  check_memory_limits(name_, workers_, memory_limits_);

  const std::vector<Passes> passes = passes_of(spec);
  if (forward_only) {
    stride_ = 1;
  } else {
    has_w_ = std::ranges::any_of(passes, &Passes::split);
    has_r_ = !std::ranges::all_of(passes, &Passes::has_home);
    recomputes_all_ = std::ranges::none_of(passes, &Passes::has_home);
    stride_ = 2 + (has_w_ ? 1 : 0) + (has_r_ ? 1 : 0);
  }
  const auto ids = passes.size() * static_cast<std::uint64_t>(stride_);
  if (ids >= no_turn) {
    throw InputError(
        fmt::format("{}: {} stages x {} micro-batches are too many jobs", name_, stages(), microbatches_));
  }

  tables_ = std::make_shared<const Tables>(make_tables(spec, passes));
}

Schedule::Tables Schedule::make_tables(const ScheduleSpec& spec, std::span<const Passes> passes) const {
  const std::size_t ids = passes.size() * index(stride_);
  Tables tables;
  tables.turn.assign(ids, no_turn);
  tables.position.assign(ids, 0);
  tables.placement.assign(ids, Placement{});
  std::vector<std::int64_t> priority(ids);
  const auto add = [&](JobId id, const Job& job) {
    tables.placement[id] = spec.placement(job);
    priority[id] = spec.priority(job);
    tables.order.push_back(id);
  };
  for (int b = 0; b < microbatches_; ++b) {
    for (int s = 0; s < stages(); ++s) {
      const JobId first = forward(s, b);
      const auto [is_split, has_home] = passes[first / static_cast<JobId>(stride_)];
      add(first, {s, b, Pass::F});
      if (forward_only()) continue;
      if (!has_home) add(recomputation(s, b), {s, b, Pass::R});
      add(first + 1, {s, b, is_split ? Pass::B : Pass::BW});
      if (is_split) add(first + 2, {s, b, Pass::W});
    }
  }
  tables.order.shrink_to_fit();
  // They are in the documented order of jobs with equal n.
  std::ranges::stable_sort(tables.order, {}, [&](JobId id) { return priority[id]; });
  tables.rows.resize(index(workers_));
  std::vector<bool> seen(index(microbatches_), false);
  for (std::uint32_t t = 0; t < tables.order.size(); ++t) {
    const JobId id = tables.order[t];
    tables.turn[id] = t;
    const auto stride = static_cast<JobId>(stride_);
    const auto microbatch = static_cast<int>(id / stride / static_cast<JobId>(stages()));
    if (id % stride == 0 && !seen[index(microbatch)]) {  // its first F
      seen[index(microbatch)] = true;
      tables.by_age.push_back(microbatch);
    }
    const int worker = tables.placement[id].compute;
    if (worker < 0 || worker >= workers_) continue;  // `check` reports it
    tables.position[id] = static_cast<std::uint32_t>(tables.rows[index(worker)].size());
    tables.rows[index(worker)].push_back(id);
  }
  return tables;
}

bool operator==(const Schedule& a, const Schedule& b) {
  return a.name_ == b.name_ && a.graph_ == b.graph_ && a.microbatches_ == b.microbatches_ &&
         a.workers_ == b.workers_ && a.stride_ == b.stride_ && a.has_w_ == b.has_w_ &&
         a.discipline_ == b.discipline_ && a.recomputes_late() == b.recomputes_late() &&
         a.memory_limits_ == b.memory_limits_ && (a.tables_ == b.tables_ || *a.tables_ == *b.tables_);
}

bool Schedule::split_backward(int stage, int microbatch) const {
  return has_w_ && exists(forward(stage, microbatch) + 2);
}

Schedule Schedule::with(Discipline discipline, std::vector<int> memory_limits) const {
  check_memory_limits(name_, workers_, memory_limits);
  Schedule changed = *this;
  changed.discipline_ = discipline;
  changed.memory_limits_ = std::move(memory_limits);
  return changed;
}

ScheduleSpec Schedule::spec() const {
  return {.name = name_,
          .graph = graph_,
          .microbatches = microbatches_,
          .workers = workers_,
          .split_backward = [this](int stage, int microbatch) { return split_backward(stage, microbatch); },
          .placement = [this](const Job& job) { return placement(*find(job)); },
          .priority = [this](const Job& job) { return std::int64_t{turn(*find(job))}; },
          .discipline = discipline_,
          .memory_limits = memory_limits_,
          .home = [this](int stage, int microbatch) { return home(stage, microbatch); },
          .late_recomputation = late_recomputation_};
}

Schedule Schedule::ordered_by(std::span<const std::int64_t> priorities) const {
  ScheduleSpec ordered = spec();
  ordered.priority = [&](const Job& job) { return priorities[*find(job)]; };
  ordered.discipline = Discipline::ordered;
  ordered.late_recomputation = recomputes_late();
  return Schedule(ordered);
}

Schedule Schedule::with_homes(const std::function<Home(int stage, int microbatch)>& home) const {
  if (forward_only()) return *this;
  ScheduleSpec changed = spec();
  changed.home = home;
  // A new R has the turn of B, and comes before it.
  const auto as_now = [this](const Job& job) {
    const std::optional<JobId> id = find(job);
    return id ? *id : backward(job.stage, job.microbatch);
  };
  changed.placement = [&](const Job& job) { return placement(as_now(job)); };
  changed.priority = [&](const Job& job) { return std::int64_t{turn(as_now(job))}; };
  return Schedule(changed);
}

Schedule Schedule::with_homes(std::span<const Home> homes) const {
  if (homes.empty()) return *this;
  if (homes.size() != 1 && homes.size() != index(stages())) {
    throw InputError(fmt::format("{}: {} homes for {} stages; give one for all, or one for each", name_,
                                 homes.size(), stages()));
  }
  return with_homes([homes](int stage, int) { return homes[homes.size() == 1 ? 0 : index(stage)]; });
}

Schedule Schedule::with_recomputation() const {
  return with_homes([](int, int) { return Home::none; });
}

std::optional<JobId> Schedule::find(const Job& wanted) const {
  if (wanted.stage < 0 || wanted.stage >= stages() || wanted.microbatch < 0 ||
      wanted.microbatch >= microbatches_) {
    return std::nullopt;
  }
  JobId id = forward(wanted.stage, wanted.microbatch);
  if (forward_only()) return wanted.pass == Pass::F ? std::optional(id) : std::nullopt;
  if (wanted.pass == Pass::W) id = weight_gradient(wanted.stage, wanted.microbatch);
  if (gives_input_gradient(wanted.pass)) id = backward(wanted.stage, wanted.microbatch);
  if (wanted.pass == Pass::R) id = recomputation(wanted.stage, wanted.microbatch);
  if (job(id) != wanted || !exists(id)) return std::nullopt;
  return id;
}

std::span<const JobId> Schedule::order(int worker) const {
  if (worker < 0 || worker >= workers_) return {};
  return tables_->rows[index(worker)];
}

int Schedule::pred_count(JobId id) const {
  int count = 0;
  for_each_pred(id, [&count](JobId) { ++count; });
  return count;
}

Pass parse_pass(std::string_view word) {
  const auto found = std::ranges::find(pass_words, word);
  if (found == pass_words.end())
    throw InputError(fmt::format("unknown pass '{}' ({})", word, fmt::join(pass_words, ", ")));
  return static_cast<Pass>(found - pass_words.begin());
}

std::string to_string(const Job& job) {
  return fmt::format("{}({},{})", to_string(job.pass), job.stage, job.microbatch);
}

// A topological order of all jobs, restricted to forward passes, keeps the order of each worker and puts
// every job after its producers. So the new order has no cycle, and neither have successive rounds.
Schedule forward_passes(const Schedule& schedule, int microbatches) {
  std::vector<std::int64_t> place(schedule.id_count(), 0);
  std::int64_t next = 0;
  for (const JobId id : topological_order(schedule)) place[id] = next++;
  const auto of_round = [&](const Job& job) {
    return schedule.forward(job.stage, job.microbatch % schedule.microbatches());
  };
  ScheduleSpec spec = schedule.spec();
  spec.microbatches = microbatches;
  spec.split_backward = {};
  spec.placement = [&](const Job& job) { return schedule.placement(of_round(job)); };
  spec.priority = [&](const Job& job) {
    return job.microbatch / schedule.microbatches() * next + place[of_round(job)];
  };
  if (schedule.discipline() != Discipline::ordered) spec.discipline = Discipline::greedy;
  spec.memory_limits = {};
  spec.home = {};
  return {spec, true};
}

}  // namespace starpipe::plan
