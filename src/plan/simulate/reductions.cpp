// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/reductions.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "plan/simulate/transfers_in_flight.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

std::vector<int> weight_holders(const Schedule& schedule, int stage) {
  std::set<int> holders;
  for (int b = 0; b < schedule.microbatches(); ++b) {
    holders.insert(schedule.placement(schedule.forward(stage, b)).weights);
    if (schedule.forward_only()) continue;
    for (const JobId id : {schedule.backward(stage, b), schedule.weight_gradient(stage, b)}) {
      holders.insert(schedule.placement(id).weights);
    }
  }
  return {holders.begin(), holders.end()};
}

std::vector<int> gradient_workers(const Schedule& schedule, int stage) {
  return gradient_workers(schedule, std::span(&stage, 1));
}

std::vector<int> gradient_workers(const Schedule& schedule, std::span<const int> stages) {
  std::set<int> workers;
  for (const int stage : stages) {
    for (int b = 0; !schedule.forward_only() && b < schedule.microbatches(); ++b)
      workers.insert(schedule.compute(schedule.weight_gradient(stage, b)));
  }
  return {workers.begin(), workers.end()};
}

std::vector<ReductionStep> reduction_plan(const Schedule& schedule, int stage) {
  return reduction_plan(schedule, std::span(&stage, 1));
}

std::vector<ReductionStep> reduction_plan(const Schedule& schedule, std::span<const int> stages) {
  if (schedule.forward_only()) return {};
  const int stage = stages.front();
  const auto holders = weight_holders(schedule, stage);
  std::vector<int> tree = {holders.front()};
  for (const int worker : gradient_workers(schedule, stages)) {
    if (worker != holders.front()) tree.push_back(worker);
  }
  std::vector<ReductionStep> steps;
  for (std::size_t stride = 1; stride < tree.size(); stride *= 2) {
    for (std::size_t i = 0; i + stride < tree.size(); i += 2 * stride) {
      steps.push_back({stage, tree[i + stride], tree[i], false});
    }
  }
  for (std::size_t h = 1; h < holders.size(); ++h)
    steps.push_back({stage, holders.front(), holders[h], true});
  return steps;
}

SharedHolders::SharedHolders(const Schedule& schedule, const Schedule& training, int first_stage)
    : schedule_(schedule), first_stage_(first_stage), holders_(weight_holders(training, first_stage)) {}

int SharedHolders::of(JobId id) const {
  const int worker = schedule_.compute(id);
  if (std::ranges::binary_search(holders_, worker)) return worker;
  return schedule_.placement(schedule_.forward(first_stage_, schedule_.job(id).microbatch)).weights;
}

namespace {

/// The reductions of a step, after its jobs.
class GradientSums {
 public:
  GradientSums(const Schedule& schedule, const Costs& costs, const Timeline& timeline)
      : schedule_(schedule), timeline_(timeline), in_flight_(costs.links, costs.workers_of_rank) {
    for (int s = 0; s < schedule.stages(); ++s) {
      if (costs.size(s).has_weights) add(std::span(&s, 1), costs.size(s).updated());
    }
    for (const SharedWeights& weights : costs.shared) add(weights.stages, weights.updated());
  }

  [[nodiscard]] bool any() const { return !transfers_.empty(); }

  /// Returns the time at which the last sum is on its last holder.
  double run() {
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].missing == 0) send_from(p);
    }
    std::vector<std::uint32_t> arrived;
    while (!ready_.empty() || in_flight_.next() < TransfersInFlight::never) {
      const double now =
          ready_.empty() ? in_flight_.next() : std::min(ready_.begin()->first, in_flight_.next());
      arrived.clear();
      in_flight_.advance(now, arrived);
      for (const std::uint32_t number : arrived) arrive(transfers_[number], now);
      for (; !ready_.empty() && ready_.begin()->first == now; ready_.erase(ready_.begin())) {
        const std::uint32_t number = ready_.begin()->second;
        const Transfer& transfer = transfers_[number];
        in_flight_.begin(now, parts_[transfer.from].worker, transfer.to, transfer.bytes, number);
      }
    }
    return last_;
  }

 private:
  static constexpr std::size_t no_part = static_cast<std::size_t>(-1);

  /// The sum of one gradient that a worker makes.
  struct Part {
    int worker;
    double ready;                       // when all that the worker has so far is added
    int missing = 0;                    // contributions that it has not added yet
    std::vector<std::uint32_t> sent{};  // transfers
  };
  struct Transfer {
    std::size_t from;  // part
    std::size_t into;  // part; `no_part` for a finished sum
    int to;            // worker
    std::uint64_t bytes;
  };

  void add(std::span<const int> stages, std::uint64_t bytes) {
    const std::vector<ReductionStep> steps = reduction_plan(schedule_, stages);
    if (steps.empty()) return;
    std::map<int, std::size_t> part_of;  // by worker
    const auto part = [&](int worker) {
      const auto [found, is_new] = part_of.try_emplace(worker, parts_.size());
      if (is_new) parts_.push_back({.worker = worker, .ready = 0});
      return found->second;
    };
    for (const int stage : stages) {
      for (int b = 0; b < schedule_.microbatches(); ++b) {
        const JobId id = schedule_.weight_gradient(stage, b);
        Part& own = parts_[part(schedule_.compute(id))];
        own.ready = std::max(own.ready, timeline_.spans[id].end);
      }
    }
    for (const ReductionStep& step : steps) {
      const std::size_t from = part(step.from);
      const std::size_t into = step.broadcast ? no_part : part(step.into);
      if (!step.broadcast) ++parts_[into].missing;
      parts_[from].sent.push_back(static_cast<std::uint32_t>(transfers_.size()));
      transfers_.push_back({from, into, step.into, bytes});
    }
  }

  void send_from(std::size_t part) {
    for (const std::uint32_t number : parts_[part].sent) ready_.emplace(parts_[part].ready, number);
  }

  void arrive(const Transfer& transfer, double now) {
    const double added = end_of_present_job(transfer.to, now);
    last_ = std::max(last_, added);
    if (transfer.into == no_part) return;
    Part& into = parts_[transfer.into];
    into.ready = std::max(into.ready, added);
    last_ = std::max(last_, into.ready);
    if (--into.missing == 0) send_from(transfer.into);
  }

  /// Returns `now`, or the end of the job that the worker runs then.
  [[nodiscard]] double end_of_present_job(int worker, double now) const {
    const std::vector<JobId>& jobs = timeline_.order[index(worker)];
    const auto later =
        std::ranges::lower_bound(jobs, now, {}, [&](JobId id) { return timeline_.spans[id].start; });
    return later == jobs.begin() ? now : std::max(now, timeline_.spans[*std::prev(later)].end);
  }

  const Schedule& schedule_;
  const Timeline& timeline_;
  TransfersInFlight in_flight_;
  std::vector<Part> parts_;
  std::vector<Transfer> transfers_;
  double last_ = 0;
  std::set<std::pair<double, std::uint32_t>> ready_;  // when a transfer begins, and its number
};

}  // namespace

std::optional<double> gradients_summed(const Schedule& schedule, const Costs& costs,
                                       const Timeline& timeline) {
  if (schedule.forward_only() || (!costs.prefetch && costs.links.takes_time())) return std::nullopt;
  GradientSums sums(schedule, costs, timeline);
  if (!sums.any()) return std::nullopt;
  return std::max(timeline.makespan, sums.run() - first_start(timeline));
}

}  // namespace starpipe::plan
