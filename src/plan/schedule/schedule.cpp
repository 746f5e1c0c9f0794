// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/schedule.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

void check_memory_limits(const std::string& name, int workers, const std::vector<int>& limits) {
  if (limits.empty() || limits.size() == index(workers)) return;
  throw InputError(fmt::format("{}: {} memory limits for {} workers", name, limits.size(), workers));
}

// By micro-batch and stage, whether B and W are two jobs.
std::vector<bool> split_pairs(const ScheduleSpec& spec) {
  const std::size_t stages = index(spec.graph.size());
  std::vector<bool> split(stages * index(spec.microbatches), false);
  for (std::size_t i = 0; spec.split_backward && i < split.size(); ++i) {
    split[i] = spec.split_backward(static_cast<int>(i % stages), static_cast<int>(i / stages));
  }
  return split;
}

// Micro-batches in the order of their first forward passes.
std::vector<int> by_first_forward(const Schedule& schedule) {
  std::vector<int> microbatches;
  std::vector<bool> seen(index(schedule.microbatches()), false);
  for (const JobId id : schedule.order()) {
    const Job& job = schedule.job(id);
    if (job.pass != Pass::F || seen[index(job.microbatch)]) continue;
    seen[index(job.microbatch)] = true;
    microbatches.push_back(job.microbatch);
  }
  return microbatches;
}

}  // namespace

std::string_view to_string(Discipline discipline) { return discipline_words[index(discipline)]; }

Discipline parse_discipline(std::string_view word) {
  for (const auto discipline : {Discipline::greedy, Discipline::bounded, Discipline::ordered}) {
    if (word == to_string(discipline)) return discipline;
  }
  throw InputError(fmt::format("unknown discipline '{}' (greedy, bounded or ordered)", word));
}

Schedule::Schedule(const ScheduleSpec& spec, bool forward_only)
    : name_(spec.name),
      graph_(spec.graph),
      microbatches_(spec.microbatches),
      workers_(spec.workers),
      discipline_(spec.discipline),
      memory_limits_(spec.memory_limits),
      recompute_(spec.recompute) {
  if (microbatches_ < 1)
    throw InputError(fmt::format("{}: {} micro-batches, need at least 1", name_, microbatches_));
  if (workers_ < 1) throw InputError(fmt::format("{}: {} workers, need at least 1", name_, workers_));
  if (!spec.placement || !spec.priority) throw InputError(name_ + ": a schedule needs w and n");
  check_memory_limits(name_, workers_, memory_limits_);

  const std::vector<bool> split = split_pairs(spec);
  stride_ = std::ranges::find(split, true) == split.end() ? 2 : 3;
  if (forward_only) stride_ = 1;
  const auto ids = split.size() * static_cast<std::uint64_t>(stride_);
  if (ids >= no_turn) {
    throw InputError(
        fmt::format("{}: {} stages x {} micro-batches are too many jobs", name_, stages(), microbatches_));
  }

  turn_.assign(ids, no_turn);
  position_.assign(ids, 0);
  placement_.assign(ids, Placement{});
  jobs_.assign(ids, Job{});
  std::vector<std::int64_t> priority(ids);
  const auto add = [&](JobId id, const Job& job) {
    jobs_[id] = job;
    placement_[id] = spec.placement(job);
    priority[id] = spec.priority(job);
    order_.push_back(id);
  };
  for (int b = 0; b < microbatches_; ++b) {
    for (int s = 0; s < stages(); ++s) {
      const JobId first = forward(s, b);
      const bool is_split = split[first / static_cast<JobId>(stride_)];
      add(first, {s, b, Pass::F});
      if (forward_only) continue;
      add(first + 1, {s, b, is_split ? Pass::B : Pass::BW});
      if (is_split) add(first + 2, {s, b, Pass::W});
    }
  }
  // Job numbers ascend by micro-batch, stage and pass, the documented order of jobs with equal n.
  std::ranges::stable_sort(order_, {}, [&](JobId id) { return priority[id]; });
  for (std::uint32_t t = 0; t < order_.size(); ++t) turn_[order_[t]] = t;

  by_age_ = by_first_forward(*this);

  const auto on_worker = [this](JobId id) { return compute(id) >= 0 && compute(id) < workers_; };
  worker_offsets_.assign(index(workers_) + 1, 0);
  for (const JobId id : order_) {
    if (on_worker(id)) ++worker_offsets_[index(compute(id)) + 1];
  }
  for (std::size_t w = 0; w + 1 < worker_offsets_.size(); ++w) worker_offsets_[w + 1] += worker_offsets_[w];
  worker_order_.resize(worker_offsets_.back());
  std::vector<std::size_t> next(worker_offsets_.begin(), worker_offsets_.end() - 1);
  for (const JobId id : order_) {
    if (!on_worker(id)) continue;  // `check` reports it
    const auto w = index(compute(id));
    position_[id] = static_cast<std::uint32_t>(next[w] - worker_offsets_[w]);
    worker_order_[next[w]++] = id;
  }
}

bool Schedule::split_backward(int stage, int microbatch) const {
  return stride_ == 3 && exists(forward(stage, microbatch) + 2);
}

Schedule Schedule::with(Discipline discipline, std::vector<int> memory_limits) const {
  check_memory_limits(name_, workers_, memory_limits);
  Schedule changed = *this;
  changed.discipline_ = discipline;
  changed.memory_limits_ = std::move(memory_limits);
  return changed;
}

Schedule Schedule::with_recomputation() const {
  Schedule changed = *this;
  changed.recompute_ = !forward_only();
  return changed;
}

std::optional<JobId> Schedule::find(const Job& wanted) const {
  if (wanted.stage < 0 || wanted.stage >= stages() || wanted.microbatch < 0 ||
      wanted.microbatch >= microbatches_) {
    return std::nullopt;
  }
  JobId id = forward(wanted.stage, wanted.microbatch);
  if (forward_only()) return wanted.pass == Pass::F ? std::optional(id) : std::nullopt;
  if (wanted.pass == Pass::W) id = weight_gradient(wanted.stage, wanted.microbatch);
  if (wanted.pass == Pass::B || wanted.pass == Pass::BW) id = backward(wanted.stage, wanted.microbatch);
  if (job(id) != wanted) return std::nullopt;
  return id;
}

std::span<const JobId> Schedule::order(int worker) const {
  if (worker < 0 || worker >= workers_) return {};
  const auto w = index(worker);
  return std::span(worker_order_).subspan(worker_offsets_[w], worker_offsets_[w + 1] - worker_offsets_[w]);
}

int Schedule::pred_count(JobId id) const {
  int count = 0;
  for_each_pred(id, [&count](JobId) { ++count; });
  return count;
}

}  // namespace starpipe::plan
