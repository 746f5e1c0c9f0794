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

namespace {

/// Bytes [begin, end) of a gradient, which a worker has summed for its part of the tree.
struct Slice {
  int worker = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Joins the parts of the tree, and notes who sends what to whom.
class Exchange {
 public:
  /// A part of the tree: who has which slice of its sum, by the slices' first byte.
  struct Part {
    std::vector<Slice> slices;
    bool has_holder = false;
  };
  struct Move {
    int from = 0;
    int into = 0;
    std::uint64_t first = 0;
    std::uint64_t bytes = 0;
  };
  /// The messages that join all parts of one size.
  struct Round {
    std::vector<Move> sums;
    std::vector<Move> finished;  // on the way back
  };

  void begin_round() { rounds_.emplace_back(); }

  /// Joins `right` to `left`.
  void join(Part& left, const Part& right) {
    std::vector<Slice> joined;
    bool left_first = true;
    for (auto l = left.slices.cbegin(), r = right.slices.cbegin();
         l != left.slices.cend() && r != right.slices.cend();) {
      const std::uint64_t begin = std::max(l->begin, r->begin);
      const std::uint64_t end = std::min(l->end, r->end);
      if (left.has_holder != right.has_holder) {
        keep(left.has_holder ? *l : *r, left.has_holder ? *r : *l, begin, end, false, joined);
      } else {
        // Each keeps a half. Two halves of one worker that follow each other become one slice: so the order
        // of the workers alternates.
        const std::uint64_t middle = begin + (end - begin) / 2 / word * word;
        const Slice& first = left_first ? *l : *r;
        const Slice& second = left_first ? *r : *l;
        keep(first, second, begin, middle, left.has_holder, joined);
        keep(second, first, middle, end, left.has_holder, joined);
        left_first = !left_first;
      }
      if (l->end == end) ++l;
      if (r->end == end) ++r;
    }
    left.slices = std::move(joined);
    left.has_holder = left.has_holder || right.has_holder;
  }

  [[nodiscard]] const std::vector<Round>& rounds() const { return rounds_; }

 private:
  static constexpr std::uint64_t word = 4;

  // The worker of `keeps` gets the bytes [begin, end) of the worker of `sends`.
  void keep(const Slice& keeps, const Slice& sends, std::uint64_t begin, std::uint64_t end, bool comes_back,
            std::vector<Slice>& joined) {
    if (begin == end) return;
    rounds_.back().sums.push_back({sends.worker, keeps.worker, begin, end - begin});
    if (comes_back) rounds_.back().finished.push_back({keeps.worker, sends.worker, begin, end - begin});
    if (!joined.empty() && joined.back().worker == keeps.worker) {
      joined.back().end = end;
    } else {
      joined.push_back({keeps.worker, begin, end});
    }
  }

  std::vector<Round> rounds_;
};

}  // namespace

std::vector<ReductionStep> reduction_plan(const Schedule& schedule, int stage, std::uint64_t bytes) {
  return reduction_plan(schedule, std::span(&stage, 1), bytes);
}

std::vector<ReductionStep> reduction_plan(const Schedule& schedule, std::span<const int> stages,
                                          std::uint64_t bytes) {
  if (schedule.forward_only()) return {};
  const std::vector<int> holders = weight_holders(schedule, stages.front());
  const std::vector<int> contributors = gradient_workers(schedule, stages);
  constexpr std::uint64_t large = std::uint64_t{1} << 60;
  const std::uint64_t size = bytes == 0 ? large : bytes;
  const auto leaf = [&](int worker) {
    return Exchange::Part{{{worker, 0, size}}, std::ranges::binary_search(holders, worker)};
  };
  std::vector<Exchange::Part> tree = {leaf(holders.front())};
  for (const int worker : contributors) {
    if (worker != holders.front()) tree.push_back(leaf(worker));
  }
  Exchange exchange;
  for (std::size_t stride = 1; stride < tree.size(); stride *= 2) {
    exchange.begin_round();
    for (std::size_t i = 0; i + stride < tree.size(); i += 2 * stride)
      exchange.join(tree[i], tree[i + stride]);
  }

  std::vector<ReductionStep> steps;
  int round = 0;
  const auto add = [&](const std::vector<Exchange::Move>& moves, bool finished) {
    for (const auto& [from, into, first, count] : moves)
      steps.push_back(
          {stages.front(), round, from, into, finished, bytes == 0 ? 0 : first, bytes == 0 ? 0 : count});
    ++round;
  };
  for (const Exchange::Round& of : exchange.rounds()) add(of.sums, false);
  for (auto of = exchange.rounds().rbegin(); of != exchange.rounds().rend(); ++of) add(of->finished, true);
  std::vector<int> complete;
  std::vector<Exchange::Move> rest;
  for (const int holder : holders) {
    if (holder == holders.front() || std::ranges::binary_search(contributors, holder))
      complete.push_back(holder);
  }
  for (const int holder : holders) {
    if (!std::ranges::binary_search(complete, holder))
      rest.push_back({complete[rest.size() % complete.size()], holder, 0, size});
  }
  add(rest, true);
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
      : schedule_(schedule),
        timeline_(timeline),
        in_flight_(costs.links, costs.workers_of_rank, costs.ordered_messages) {
    for (int s = 0; s < schedule.stages(); ++s) {
      if (costs.size(s).has_weights) add(std::span(&s, 1), costs.size(s).updated());
    }
    for (const SharedWeights& weights : costs.shared) add(weights.stages, weights.updated());
  }

  [[nodiscard]] bool any() const { return !transfers_.empty(); }

  /// Returns the time at which the last sum is on its last holder.
  double run() {
    for (Sum& sum : sums_) go_on(sum);
    std::vector<std::uint32_t> arrived;
    while (!leaving_.empty() || in_flight_.next() < TransfersInFlight::never) {
      const double now =
          leaving_.empty() ? in_flight_.next() : std::min(leaving_.begin()->first, in_flight_.next());
      arrived.clear();
      in_flight_.advance(now, arrived);
      for (const std::uint32_t number : arrived) arrive(transfers_[number], now);
      for (; !leaving_.empty() && leaving_.begin()->first == now; leaving_.erase(leaving_.begin())) {
        const std::uint32_t number = leaving_.begin()->second;
        const Transfer& transfer = transfers_[number];
        in_flight_.begin(now, sums_[transfer.from].worker, sums_[transfer.into].worker, transfer.bytes,
                         number);
      }
    }
    return last_;
  }

 private:
  /// The slices that a round adds to a worker's sum, and those that the worker sends.
  struct Round {
    int missing = 0;                       // slices that have not arrived
    std::optional<double> arrived = {};    // the last of the others
    std::vector<std::uint32_t> sent = {};  // transfers
  };
  /// The sum of one gradient on a worker.
  struct Sum {
    int worker;
    double ready = 0;                  // when all that the worker has so far is added
    std::map<int, Round> rounds = {};  // that have not ended
    bool sends = true;                 // the transfers of the first of them have not been sent
  };
  struct Transfer {
    std::size_t from;  // sum
    std::size_t into;
    int round;
    std::uint64_t bytes;
  };

  void add(std::span<const int> stages, std::uint64_t bytes) {
    const std::vector<ReductionStep> steps = reduction_plan(schedule_, stages, bytes);
    if (steps.empty()) return;
    std::map<int, std::size_t> sum_of;  // by worker
    const auto sum = [&](int worker) {
      const auto [found, is_new] = sum_of.try_emplace(worker, sums_.size());
      if (is_new) sums_.push_back({.worker = worker});
      return found->second;
    };
    for (const int stage : stages) {
      for (int b = 0; b < schedule_.microbatches(); ++b) {
        const JobId id = schedule_.weight_gradient(stage, b);
        Sum& own = sums_[sum(schedule_.compute(id))];
        own.ready = std::max(own.ready, timeline_.spans[id].end);
      }
    }
    for (const ReductionStep& step : steps) {
      const std::size_t from = sum(step.from);
      const std::size_t into = sum(step.into);
      ++sums_[into].rounds[step.round].missing;
      sums_[from].rounds[step.round].sent.push_back(static_cast<std::uint32_t>(transfers_.size()));
      transfers_.push_back({from, into, step.round, step.bytes});
    }
  }

  void arrive(const Transfer& transfer, double now) {
    Round& round = sums_[transfer.into].rounds.at(transfer.round);
    round.arrived = now;
    if (--round.missing == 0) go_on(sums_[transfer.into]);
  }

  // Sends the slices of the sum's next round, and ends rounds that miss nothing.
  void go_on(Sum& sum) {
    while (!sum.rounds.empty()) {
      Round& round = sum.rounds.begin()->second;
      if (sum.sends) {
        for (const std::uint32_t number : round.sent) leaving_.emplace(sum.ready, number);
      }
      sum.sends = round.missing == 0;
      if (!sum.sends) return;
      if (round.arrived) sum.ready = end_of_present_job(sum.worker, std::max(sum.ready, *round.arrived));
      last_ = std::max(last_, sum.ready);
      sum.rounds.erase(sum.rounds.begin());
    }
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
  std::vector<Sum> sums_;
  std::vector<Transfer> transfers_;
  double last_ = 0;
  std::set<std::pair<double, std::uint32_t>> leaving_;  // when a transfer begins, and its number
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
