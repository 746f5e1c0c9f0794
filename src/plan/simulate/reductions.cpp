// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/reductions.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

std::vector<int> weight_holders(const Schedule& schedule, int stage) {
  std::set<int> holders;
  for (int b = 0; b < schedule.microbatches(); ++b) {
    const JobId forward = schedule.forward(stage, b);
    holders.insert(schedule.placement(forward).weights);
    if (schedule.forward_only()) continue;
    for (const JobId id :
         {schedule.stash_maker(stage, b), schedule.backward(stage, b), schedule.weight_gradient(stage, b)})
      holders.insert(schedule.placement(id).weights);
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
struct Segment {
  int worker = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Joins the parts of the tree, and notes who sends what to whom.
class Exchange {
 public:
  /// A part of the tree: who has which segment of its sum, by the segments' first byte.
  struct Part {
    std::vector<Segment> segments;
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
    std::vector<Segment> joined;
    bool left_first = true;
    for (auto l = left.segments.cbegin(), r = right.segments.cbegin();
         l != left.segments.cend() && r != right.segments.cend();) {
      const std::uint64_t begin = std::max(l->begin, r->begin);
      const std::uint64_t end = std::min(l->end, r->end);
      if (left.has_holder != right.has_holder) {
        keep(left.has_holder ? *l : *r, left.has_holder ? *r : *l, begin, end, false, joined);
      } else {
        // Each of the two workers keeps a half. In every second segment the right worker keeps the first
        // half: so a worker's halves of two neighbouring segments touch, and become one segment.
        const std::uint64_t middle = begin + (end - begin) / 2 / word * word;
        const Segment& first = left_first ? *l : *r;
        const Segment& second = left_first ? *r : *l;
        keep(first, second, begin, middle, left.has_holder, joined);
        keep(second, first, middle, end, left.has_holder, joined);
        left_first = !left_first;
      }
      if (l->end == end) ++l;
      if (r->end == end) ++r;
    }
    left.segments = std::move(joined);
    left.has_holder = left.has_holder || right.has_holder;
  }

  [[nodiscard]] const std::vector<Round>& rounds() const { return rounds_; }

 private:
  static constexpr std::uint64_t word = 4;

  // The worker of `keeps` gets the bytes [begin, end) of the worker of `sends`.
  void keep(const Segment& keeps, const Segment& sends, std::uint64_t begin, std::uint64_t end,
            bool comes_back, std::vector<Segment>& joined) {
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

}  // namespace starpipe::plan
