// SPDX-License-Identifier: Apache-2.0
#include "plan/search/partition_problem.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::plan {
namespace {

void check(const PartitionRequest& request) {
  require_input(!request.units.empty(), "partition", "needs at least 1 unit");
  require_input(request.workers >= 1, "partition",
                fmt::format("{} workers, need at least 1", request.workers));
  require_input(
      request.kinds.empty() ||
          (std::cmp_equal(request.kinds.size(), request.workers) && std::ranges::min(request.kinds) >= 0),
      "partition",
      fmt::format("kinds of devices: need one for each of the {} workers, none negative; there are {}",
                  request.workers, request.kinds.size()));
  for (std::size_t l = 0; l < request.units.size(); ++l) {
    const UnitCosts& unit = request.units[l];
    require_input(
        request.kinds.empty() || std::cmp_less(std::ranges::max(request.kinds), unit.others.size() + 1),
        "partition", fmt::format("unit {} ({}): no times for the kind of some worker", l, unit.name));
    for (std::size_t kind = 0; kind <= unit.others.size(); ++kind) {
      const Durations& time = unit.on(static_cast<int>(kind));
      require_input(finite_amounts.contains(time.F) && finite_amounts.contains(time.B) &&
                        finite_amounts.contains(time.W),
                    "partition",
                    fmt::format("unit {} ({}): times must be {} (F={}, B={}, W={})", l, unit.name,
                                finite_amounts.text(), time.F, time.B, time.W));
    }
  }
  const std::size_t limits = request.memory_limits.size();
  require_input(limits == 1 || limits == index(request.workers), "partition",
                fmt::format("{} memory limits for {} workers; give one for all, or one for each", limits,
                            request.workers));
  for (const double limit : request.memory_limits) {
    require_input(limit > 0, "partition", fmt::format("the memory limit must be positive, not {}", limit));
  }
  require_input(
      finite_amounts.contains(request.optimizer_states), "partition",
      fmt::format("optimizer states must be {}, not {}", finite_amounts.text(), request.optimizer_states));
  for (const SharedUnits& set : request.shared) {
    const bool ascending = std::ranges::adjacent_find(set.units, std::greater_equal<>()) == set.units.end();
    require_input(!set.units.empty() && ascending && set.units.front() >= 0 &&
                      std::cmp_less(set.units.back(), request.units.size()),
                  "partition",
                  fmt::format("the units that share {} are not ascending units of the chain", set.name));
  }
  require_input(!request.stashes.empty() && std::ranges::min(request.stashes) >= 0, "partition",
                "a number of stashes is missing or negative");
  require_input(!request.max_stages || *request.max_stages >= 1, "partition", "at least 1 stage is needed");
  const bool placed = request.allocation == Allocation::placed;
  require_input(
      placed != request.stage_workers.empty(), "partition",
      placed ? "stage_workers is missing" : "stage_workers applies to the allocation `placed` only");
  require_input(
      request.stage_workers.size() <= request.units.size(), "partition",
      fmt::format("{} units do not make {} stages", request.units.size(), request.stage_workers.size()));
  for (const int worker : request.stage_workers) {
    require_input(worker >= 0 && worker < request.workers, "partition",
                  fmt::format("worker {} does not exist", worker));
  }
}

void add_to(std::vector<double>& before, double amount) { before.push_back(before.back() + amount); }

}  // namespace

PartitionProblem::PartitionProblem(const PartitionRequest& request)
    : request_(request), min_held_(request.stashes.empty() ? 0 : std::ranges::min(request.stashes)) {
  check(request);
  set_kinds();
  require_input(
      request.allocation != Allocation::contiguous || has_one_link() || !is_mixed(), "partition",
      "with links of several levels, contiguous stages need workers of one kind and with one memory "
      "limit");
  set_speeds();
  for (const UnitCosts& unit : request.units) {
    const StageSizes& sizes = unit.sizes;
    add_to(weights_, static_cast<double>(sizes.weights + sizes.master) +
                         (1 + request.optimizer_states) * static_cast<double>(sizes.updated()));
    add_to(stash_, static_cast<double>(unit.sizes.stash));
    activation_.push_back(unit.sizes.activation);
    gradient_.push_back(unit.sizes.gradient);
  }
}

void PartitionProblem::set_kinds() {
  std::vector<std::pair<int, double>> kinds;  // device and limit
  for (std::size_t w = 0; w < index(workers()); ++w) {
    const int device = request_.kinds.empty() ? 0 : request_.kinds[w];
    const std::vector<double>& limits = request_.memory_limits;
    const std::pair kind(device, limits[limits.size() == 1 ? 0 : w]);
    const auto at = std::ranges::find(kinds, kind);
    kind_.push_back(static_cast<int>(at - kinds.begin()));
    if (at == kinds.end()) kinds.push_back(kind);
  }
  for (const auto& [device, limit] : kinds) {
    limit_.push_back(limit);
    time_.push_back({0});
    for (const UnitCosts& unit : request_.units) {
      const Durations& time = unit.on(device);
      add_to(time_.back(), time.F + time.B + time.W);
    }
  }
}

// With n units, gradients from at most n - 1 other workers are added in a binary tree: its root, the first
// worker, receives at most bit_width(n - 1) of them, and the others fewer. They count as if all were there at
// once, at the peak of the stashes.
PartitionProblem::SharedBytes PartitionProblem::bytes_of(const SharedUnits& set) const {
  const auto updated = static_cast<double>(set.updated());
  const int levels = std::max(1, static_cast<int>(std::bit_width(set.units.size() - 1)));
  return {
      .alone = static_cast<double>(set.weights + set.master) + (request_.optimizer_states + levels) * updated,
      .received = updated,
      .copy = static_cast<double>(set.weights) + levels * updated};
}

StageValue PartitionProblem::memory_alone(UnitRange range, int following) const {
  const double own = memory(range, following);
  StageValue total{own, own};
  for (const SharedUnits& set : request_.shared) {
    const auto [alone, received, copy] = bytes_of(set);
    const auto first = std::ranges::lower_bound(set.units, range.begin);
    if (first == set.units.end() || *first >= range.end) continue;
    const bool holds = first == set.units.begin();
    total.min += holds ? alone : copy;
    total.value += holds ? alone + (set.units.back() >= range.end ? received : 0) : copy;
  }
  return total;
}

template <class Owner>
double PartitionProblem::added_by(const SharedUnits& set, std::size_t member, Owner owner) const {
  const auto [alone, received, copy] = bytes_of(set);
  const int worker = owner(set.units[member]);
  bool here = false;
  bool elsewhere = false;
  for (std::size_t later = member + 1; later < set.units.size(); ++later)
    (owner(set.units[later]) == worker ? here : elsewhere) = true;
  if (member == 0) return alone + (elsewhere ? received : 0) - (here ? copy : 0);
  return here ? 0 : copy;
}

double PartitionProblem::shared_memory(int unit, const std::vector<int>& owners) const {
  double sum = 0;
  for (const SharedUnits& set : request_.shared) {
    const auto at = std::ranges::lower_bound(set.units, unit);
    if (at == set.units.end() || *at != unit) continue;
    sum += added_by(set, static_cast<std::size_t>(at - set.units.begin()),
                    [&owners](int of) { return owners[index(of)]; });
  }
  return sum;
}

bool PartitionProblem::has_limit() const { return std::ranges::min(limit_) < infinity; }

double PartitionProblem::held(int following) const {
  return request_.stashes[std::min(index(following), request_.stashes.size() - 1)];
}

// A kind's speed is kind 0's time for the whole chain divided by its own. Workers that are all busy for a
// time T then do at most T times the sum of their speeds of work. The bound is exact if one kind is faster
// than the other by the same factor in every unit.
void PartitionProblem::set_speeds() {
  speed_.assign(time_.size(), 1);
  for (std::size_t kind = 0; is_mixed() && kind < time_.size(); ++kind) {
    if (time_[kind].back() > 0) speed_[kind] = time_[0].back() / time_[kind].back();
  }
  for (int l = 0; l < units(); ++l) {
    double min = infinity;
    for (std::size_t kind = 0; kind < time_.size(); ++kind)
      min = std::min(min, speed_[kind] * difference(time_[kind], {l, l + 1}));
    add_to(min_work_, min);
  }
}

// For workers of several kinds. Transfers are left out.
double PartitionProblem::bottleneck_bound() const {
  std::vector<int> available = request_.stage_workers;
  if (available.empty()) {
    available.resize(index(workers()));
    std::iota(available.begin(), available.end(), 0);
  }
  const std::set<int> distinct(available.begin(), available.end());
  double speeds = 0;
  for (const int worker : distinct) speeds += speed(worker);
  double longest = 0;
  for (int l = 0; l < units(); ++l) {
    double min = infinity;
    for (const int worker : distinct) min = std::min(min, time({l, l + 1}, worker));
    longest = std::max(longest, min);
  }
  return std::max(longest, speeds > 0 ? min_work({0, units()}) / speeds : 0);
}

double PartitionProblem::lower_bound(Goal goal) const {
  if (is_mixed() && goal == Goal::bottleneck) return bottleneck_bound();
  const auto amount = [&](UnitRange range) {
    return goal == Goal::bottleneck ? time(range, 0) : min_memory(range);
  };
  double longest = 0;
  for (int l = 0; l < units(); ++l) longest = std::max(longest, amount({l, l + 1}));
  // boundaries[n]: shortest time of the transfers if n boundaries lie between workers.
  std::vector<double> boundaries;
  for (int l = 1; l < units(); ++l) {
    boundaries.push_back(goal == Goal::bottleneck ? min_transfers(l) : 0);
  }
  std::ranges::sort(boundaries);
  boundaries.insert(boundaries.begin(), 0);
  std::partial_sum(boundaries.begin(), boundaries.end(), boundaries.begin());
  const auto mean = [&](std::size_t used, std::size_t crossed) {
    return (amount({0, units()}) + boundaries[crossed]) / static_cast<double>(used);
  };
  if (request_.allocation == Allocation::placed) {
    const std::vector<int>& of = request_.stage_workers;
    std::size_t crossed = 0;
    for (std::size_t s = 1; s < of.size(); ++s) crossed += of[s] != of[s - 1] ? 1U : 0U;
    return std::max(longest, mean(std::set<int>(of.begin(), of.end()).size(), crossed));
  }
  double min = mean(1, 0);
  for (std::size_t used = 2; used <= std::min(index(workers()), request_.units.size()); ++used) {
    min = std::min(min, mean(used, used - 1));
  }
  return std::max(longest, min);
}

UnitRange PartitionProblem::range(const Stages& stages, int stage) const {
  return {stage == 0 ? 0 : stages.cuts[index(stage - 1)],
          stage + 1 == stages.size() ? units() : stages.cuts[index(stage)]};
}

std::vector<WorkerLoad> PartitionProblem::loads(const Stages& stages) const {
  std::vector<WorkerLoad> loads(index(workers()));
  for (int s = 0; s < stages.size(); ++s) {
    const UnitRange units = range(stages, s);
    const int worker = stages.workers[index(s)];
    WorkerLoad& load = loads[index(worker)];
    load.time += time(units, worker);
    load.memory += memory(units, stages.size() - 1 - s);
    if (s == 0 || stages.workers[index(s - 1)] == worker) continue;
    const int before = stages.workers[index(s - 1)];
    load.transfers += activation_transfer(units.begin, before, worker);
    loads[index(before)].transfers += gradient_transfer(units.begin, worker, before);
  }
  const auto owner = [&stages](int unit) {
    return stages
        .workers[static_cast<std::size_t>(std::ranges::upper_bound(stages.cuts, unit) - stages.cuts.begin())];
  };
  for (const SharedUnits& set : request_.shared) {
    for (std::size_t member = 0; member < set.units.size(); ++member)
      loads[index(owner(set.units[member]))].memory += added_by(set, member, owner);
  }
  return loads;
}

}  // namespace starpipe::plan
