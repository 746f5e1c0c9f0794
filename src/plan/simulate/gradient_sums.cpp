// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/gradient_sums.hpp"

#include <algorithm>
#include <iterator>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

GradientSums::GradientSums(const Schedule& schedule, const Costs& costs, PresentJobEnd present_job_end)
    : schedule_(schedule), present_job_end_(std::move(present_job_end)), sums_of_(index(schedule.stages())) {
  if (schedule.forward_only()) return;
  for (int s = 0; s < schedule.stages(); ++s) {
    if (costs.size(s).has_weights) add(std::span(&s, 1), costs.size(s).updated());
  }
  for (const SharedWeights& weights : costs.shared) add(weights.stages, weights.updated());
  for (Sum& sum : sums_) {
    if (sum.jobs == 0) go_on(sum);
  }
}

void GradientSums::add(std::span<const int> stages, std::uint64_t bytes) {
  const std::vector<ReductionStep> steps = reduction_plan(schedule_, stages, bytes);
  if (steps.empty()) return;
  std::map<int, std::size_t> sum_of;  // by worker
  const auto sum = [&](int worker) {
    const auto [found, is_new] = sum_of.try_emplace(worker, sums_.size());
    if (is_new) sums_.push_back({.worker = worker});
    return found->second;
  };
  for (const int stage : stages) {
    std::set<int> workers;
    for (int b = 0; b < schedule_.microbatches(); ++b) {
      const int worker = schedule_.compute(schedule_.weight_gradient(stage, b));
      ++sums_[sum(worker)].jobs;
      if (workers.insert(worker).second) sums_of_[index(stage)][worker].push_back(sum(worker));
    }
  }
  for (const ReductionStep& step : steps) {
    const std::size_t from = sum(step.from);
    const std::size_t into = sum(step.into);
    ++sums_[into].rounds[step.round].missing;
    sums_[from].rounds[step.round].sent.push_back(static_cast<std::uint32_t>(segments_.size()));
    segments_.push_back({from, into, step.round, step.bytes});
  }
}

void GradientSums::job_ended(JobId id, double time) {
  const Job job = schedule_.job(id);
  if (!gives_weight_gradient(job.pass)) return;
  const auto& of_stage = sums_of_[index(job.stage)];
  const auto found = of_stage.find(schedule_.compute(id));
  if (found == of_stage.end()) return;
  for (const std::size_t number : found->second) {
    Sum& sum = sums_[number];
    sum.ready = std::max(sum.ready, time);
    if (--sum.jobs == 0) go_on(sum);
  }
}

void GradientSums::arrived(std::uint32_t number, double now) {
  const Segment& segment = segments_[number];
  Sum& sum = sums_[segment.into];
  Round& round = sum.rounds.at(segment.round);
  round.arrived = now;
  if (--round.missing == 0 && sum.jobs == 0) go_on(sum);
}

// Sends the segments of the sum's next round, and ends rounds that miss nothing.
void GradientSums::go_on(Sum& sum) {
  while (!sum.rounds.empty()) {
    Round& round = sum.rounds.begin()->second;
    if (sum.sends) {
      for (const std::uint32_t number : round.sent) leaving_.emplace(sum.ready, number);
    }
    sum.sends = round.missing == 0;
    if (!sum.sends) return;
    if (round.arrived) sum.ready = present_job_end_(sum.worker, std::max(sum.ready, *round.arrived));
    last_ = std::max(last_, sum.ready);
    sum.rounds.erase(sum.rounds.begin());
  }
}

double GradientSums::next() const {
  return leaving_.empty() ? TransfersInFlight::never : leaving_.begin()->first;
}

void GradientSums::send_until(double now, const Send& send) {
  for (; next() <= now; leaving_.erase(leaving_.begin())) {
    const std::uint32_t number = leaving_.begin()->second;
    const Segment& segment = segments_[number];
    send(sums_[segment.from].worker, sums_[segment.into].worker, segment.bytes, number);
  }
}

std::optional<double> gradients_summed(const Schedule& schedule, const Costs& costs,
                                       const Timeline& timeline) {
  if (!costs.prefetch && costs.links.takes_time()) return std::nullopt;
  GradientSums sums(schedule, costs, [&](int worker, double time) {
    const std::vector<JobId>& jobs = timeline.order[index(worker)];
    const auto later =
        std::ranges::lower_bound(jobs, time, {}, [&](JobId id) { return timeline.spans[id].start; });
    return later == jobs.begin() ? time : std::max(time, timeline.spans[*std::prev(later)].end);
  });
  if (!sums.any()) return std::nullopt;
  for (const JobId id : schedule.order()) sums.job_ended(id, timeline.spans[id].end);
  TransfersInFlight in_flight(costs.links, costs.workers_of_rank, costs.ordered_messages);
  std::vector<std::uint32_t> arrived;
  while (true) {
    const double now = std::min(sums.next(), in_flight.next());
    if (now == TransfersInFlight::never) break;
    arrived.clear();
    in_flight.advance(now, arrived);
    for (const std::uint32_t number : arrived) sums.arrived(number, now);
    sums.send_until(now, [&](int from, int to, std::uint64_t bytes, std::uint32_t number) {
      in_flight.begin(now, from, to, bytes, number);
    });
  }
  return std::max(timeline.makespan, sums.last() - first_start(timeline));
}

}  // namespace starpipe::plan
