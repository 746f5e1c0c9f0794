// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/best_pattern.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "starpipe/base/index.hpp"

// The order of a stage. A stage runs the F of micro-batches in their order, and the BW too. Its order is then
// given by its `Counts`: c(i mod k) is the number of stashes that it holds when BW of micro-batch i starts. F
// of i + c - 1 runs before BW of i, and F of i + c runs after it. Two neighbouring stages can finish if no
// count of the later stage is larger than the same count of the earlier stage.
//
// The shortest period of given orders. Together the orders make a graph: its nodes are the operations of
// micro-batches 0 to k - 1, and an edge says that one operation waits for another, perhaps some periods
// later. The shortest period is the largest ratio of time to periods over the graph's cycles.
namespace starpipe::plan {
namespace {

constexpr double period_tolerance = 1e-9;  // part of a period by which two periods differ
constexpr double start_rounding = 1e-11;   // part of a period that a start may be off by rounding

using Counts = std::vector<int>;  // by micro-batch mod k

/// The graph of operations of the last stages of the chain, and the shortest period that it allows. Stages
/// are pushed from the last one to the first.
class OrderGraph {
 public:
  OrderGraph(std::span<const ChainStage> chain, std::span<const int> limits, int k)
      : chain_(chain), limits_(limits), k_(k) {
    for (const ChainStage& stage : chain) {
      length_.insert(length_.end(), index(k), stage.forward);
      length_.insert(length_.end(), index(k), stage.backward);
    }
  }

  /// Adds `stage`, the one before the stages that the graph has.
  void push(int stage, const Counts& counts) {
    sizes_.push_back(edges_.size());
    const int last = static_cast<int>(chain_.size()) - 1;
    for (int i = 0; i < k_; ++i) {
      const int count = counts[index(i)];
      add({stage, i, Pass::F}, {stage, i + 1, Pass::F});
      if (stage < last) add({stage, i, Pass::F}, {stage + 1, i, Pass::F});
      if (stage < last) add({stage + 1, i, Pass::BW}, {stage, i, Pass::BW});
      add({stage, i + count - 1, Pass::F}, {stage, i, Pass::BW});
      add({stage, i, Pass::BW}, {stage, i + count, Pass::F});
      add({stage, i, Pass::BW}, {stage, i + 1, Pass::BW});
    }
    // The earlier stages have no order yet, but whatever their orders, BW of i travels from here to stage
    // `before`. That stage holds at most `max` stashes, so its F of i + most comes later, and then travels
    // back to this stage.
    double round_trip = 0;
    for (int before = stage; before-- > 0;) {
      round_trip += chain_[index(before)].time();
      const int max = limits_[index(before)];
      // With the same limit, the longer way to the stage before is the stronger bound.
      if (before > 0 && limits_[index(before - 1)] == max) continue;
      for (int i = 0; i < k_; ++i) add({stage, i, Pass::BW}, {stage, i + max, Pass::F}, round_trip);
    }
  }
  void pop() {
    edges_.resize(sizes_.back());
    sizes_.pop_back();
  }

  /// Returns the shortest period that is at least `from`. Returns nullopt if this period is not below
  /// `limit`.
  std::optional<double> period(double from, double limit) {
    double period = from;
    while (period < limit) {
      const auto longer = longest_starts(period);
      if (!longer) return period;
      if (*longer <= period) return period;  // the cycle is longer by rounding only
      period = *longer;
    }
    return std::nullopt;
  }

  /// Returns the pattern of all stages, each on the worker of its number, with a period that period()
  /// returned.
  [[nodiscard]] PeriodicPattern pattern(double period) {
    longest_starts(period);
    PatternBuilder builder(period, k_);
    for (int s = 0; s < static_cast<int>(chain_.size()); ++s) {
      for (const Pass pass : {Pass::F, Pass::BW}) {
        for (int i = 0; i < k_; ++i) builder.add(s, pass, s, start_[node({s, i, pass})], i);
      }
    }
    return builder.pattern();
  }

  /// Returns the number of edges visited so far.
  [[nodiscard]] std::int64_t work() const { return work_; }

 private:
  struct Edge {
    std::size_t from;
    std::size_t to;
    int periods;  ///< number of periods from the micro-batch of `from` to the micro-batch of `to`
    double time;  ///< shortest time from the start of `from` to the start of `to`
  };

  [[nodiscard]] std::size_t node(const Job& job) const {
    return index((2 * job.stage + (job.pass == Pass::F ? 0 : 1)) * k_ + job.microbatch % k_);
  }
  /// `to` starts at least `between` after the end of `from`.
  void add(const Job& from, const Job& to, double between = 0) {
    edges_.push_back(
        {node(from), node(to), to.microbatch / k_ - from.microbatch / k_, length_[node(from)] + between});
  }

  /// Sets `start_` to the earliest start of each operation, from 0 on. When `period` is too short, returns
  /// the time per period of a cycle that takes longer instead. (Bellman and Ford's algorithm.)
  std::optional<double> longest_starts(double period) {
    start_.assign(length_.size(), 0.0);
    before_.assign(length_.size(), nullptr);
    for (bool changed = true; changed;) {
      changed = false;
      for (const Edge& edge : edges_) {
        const double start = start_[edge.from] + edge.time - edge.periods * period;
        if (start <= start_[edge.to] + start_rounding * period) continue;
        start_[edge.to] = start;
        before_[edge.to] = &edge;
        changed = true;
      }
      work_ += static_cast<std::int64_t>(edges_.size());
      if (changed) {
        if (const auto ratio = cycle()) return ratio;
      }
    }
    return std::nullopt;
  }

  /// Returns the ratio of time to periods of a cycle in `before_`; infinity for a cycle within one period.
  /// Returns nullopt if `before_` has no cycle.
  [[nodiscard]] std::optional<double> cycle() {
    round_.assign(length_.size(), 0);
    for (std::size_t first = 0; first < length_.size(); ++first) {
      std::size_t at = first;
      while (round_[at] == 0 && before_[at] != nullptr) {
        round_[at] = first + 1;
        at = before_[at]->from;
      }
      if (before_[at] == nullptr || round_[at] != first + 1) continue;
      double time = 0;
      int periods = 0;
      const std::size_t end = at;
      do {
        time += before_[at]->time;
        periods += before_[at]->periods;
        at = before_[at]->from;
      } while (at != end);
      return periods > 0 ? time / periods : std::numeric_limits<double>::infinity();
    }
    return std::nullopt;
  }

  std::span<const ChainStage> chain_;
  std::span<const int> limits_;
  int k_;
  std::vector<double> length_;  // duration of the operation, by node
  std::vector<Edge> edges_;
  std::vector<std::size_t> sizes_;   // size of edges_ before each push
  std::vector<double> start_;        // by node
  std::vector<const Edge*> before_;  // by node: the edge that set the node's start
  std::vector<std::size_t> round_;   // by node: first node + 1 of the walk that came by, 0 for none
  std::int64_t work_ = 0;
};

/// Branch and bound over the orders of k micro-batches: decides the stages' orders from the last stage to the
/// first.
class Branches {
 public:
  Branches(std::span<const ChainStage> chain, std::vector<int> limits, int k, std::int64_t work)
      : chain_(chain), limits_(std::move(limits)), k_(k), work_(work), graph_(chain, limits_, k) {}

  /// Replaces `best` by each better pattern that it finds. Ends when the normalized period is `bound`, when
  /// all orders are tried, or when the work is spent. Returns false in the last case.
  bool improve(PeriodicPattern& best, double bound) {
    best_ = &best;
    bound_ = bound * (1 + period_tolerance) * k_;
    const int last = static_cast<int>(chain_.size()) - 1;
    // The last stage runs each BW directly after its F. Another F in between would help no other stage.
    const Counts ones(index(k_), 1);
    graph_.push(last, ones);
    if (const auto period = graph_.period(k_ * longest_stage(chain_), limit())) {
      // First only the orders in which a stage holds at most one stash more than the stage after it.
      for (const int wider : {1, std::numeric_limits<int>::max()}) {
        wider_ = wider;
        branch(last, ones, *period);
      }
    }
    graph_.pop();
    return spent() < work_;
  }

 private:
  struct Branch {
    double period;
    int sum;
    Counts counts;
  };

  /// A period below this limit improves on `best_`.
  [[nodiscard]] double limit() const { return best_->normalized_period() * k_ * (1 - period_tolerance); }
  [[nodiscard]] std::int64_t spent() const { return graph_.work() + tried_; }
  [[nodiscard]] bool over() const { return spent() >= work_ || limit() <= bound_; }

  /// Tries all orders of the stages before `after`. `counts`: the order of stage `after`; `period`: the
  /// shortest period of the orders decided so far.
  void branch(int after, const Counts& counts, double period) {
    if (after == 0) {
      *best_ = graph_.pattern(period);
      return;
    }
    const int stage = after - 1;
    std::vector<Branch> branches;
    Counts next = counts;
    // When the later stage treats all micro-batches alike, rotated counts give the same pattern. Then only
    // the smallest rotation is tried.
    const bool alike = std::ranges::adjacent_find(counts, std::ranges::not_equal_to{}) == counts.end();
    do {
      if (over()) return;
      ++tried_;
      if (!is_order(next) || (alike && !is_first_rotation(next))) continue;
      graph_.push(stage, next);
      const auto longer = graph_.period(period, limit());
      graph_.pop();
      if (longer) branches.push_back({*longer, std::accumulate(next.begin(), next.end(), 0), next});
    } while (advance(next, counts, limits_[index(stage)]));
    std::ranges::stable_sort(branches, [](const Branch& a, const Branch& b) {
      return std::pair(a.period, a.sum) < std::pair(b.period, b.sum);
    });
    for (const Branch& one : branches) {
      if (over() || one.period >= limit()) return;
      graph_.push(stage, one.counts);
      branch(stage, one.counts, one.period);
      graph_.pop();
    }
  }

  /// True if a stage can have these counts: from BW of i to BW of i + 1 it loses one stash at most.
  static bool is_order(const Counts& counts) {
    int before = counts.back();
    for (const int count : counts) {
      if (count < before - 1) return false;
      before = count;
    }
    return true;
  }

  static bool is_first_rotation(const Counts& counts) {
    Counts other = counts;
    for (std::size_t i = 1; i < counts.size(); ++i) {
      std::rotate(other.begin(), other.begin() + 1, other.end());
      if (other < counts) return false;
    }
    return true;
  }

  /// Turns `counts` into the next counts in lexicographic order. Each count is from `min` to `max`, and at
  /// most `wider_` above `min`. False after the last ones.
  bool advance(Counts& counts, const Counts& min, int max) const {
    for (std::size_t i = counts.size(); i-- > 0;) {
      if (++counts[i] <= max && counts[i] - min[i] <= wider_) return true;
      counts[i] = min[i];
    }
    return false;
  }

  std::span<const ChainStage> chain_;
  std::vector<int> limits_;
  int k_;
  std::int64_t work_;
  OrderGraph graph_;
  PeriodicPattern* best_ = nullptr;
  double bound_ = 0;        // period of k micro-batches that cannot be improved
  std::int64_t tried_ = 0;  // counts tried so far
  int wider_ = 1;           // maximum by which a count may exceed the later stage's count
};

/// Theorem 4's pattern: the 1F1B* with the shortest period that keeps the limits after it is thinned.
/// `before` are the limits before thinning.
PeriodicPattern thinned_star(std::span<const ChainStage> chain, std::span<const int> limits, int k) {
  std::vector<int> before;
  for (const int limit : limits) {
    before.push_back(limit / k < std::numeric_limits<int>::max() - limit ? limit + limit / k : limit);
  }
  return thinned(one_forward_one_backward_star(chain, min_period(chain, before)), k);
}

}  // namespace

double period_bound(std::span<const ChainStage> chain, std::span<const int> limits) {
  require_limits(chain, limits);
  double bound = longest_stage(chain);
  for (std::size_t s = 0; s < chain.size(); ++s) {
    double round_trip = 0;
    for (const ChainStage& stage : chain.subspan(s)) round_trip += stage.time();
    bound = std::max(bound, round_trip / limits[s]);
  }
  return bound;
}

PeriodicSearch best_pattern(std::span<const ChainStage> chain, std::span<const int> limits, int max,
                            std::int64_t work) {
  const double bound = period_bound(chain, limits);
  PeriodicSearch best{one_forward_one_backward_star(chain, min_period(chain, limits)), true};
  const auto reached = [&] { return best.pattern.normalized_period() <= bound * (1 + period_tolerance); };
  const auto improves = [&](const PeriodicPattern& other) {
    return other.normalized_period() < best.pattern.normalized_period() * (1 - period_tolerance);
  };
  // A stage cannot hold more stashes than the stage before it.
  std::vector<int> usable(limits.begin(), limits.end());
  int min = 2 * static_cast<int>(chain.size());
  for (int& limit : usable) limit = min = std::min(limit, min);
  // By theorem 3, 1F1B* is the best pattern for k = 1.
  for (int k = 2; k <= max && !reached(); ++k) {
    if (PeriodicPattern simple = thinned_star(chain, limits, k); improves(simple))
      best.pattern = std::move(simple);
    Branches branches(chain, usable, k, work / std::max(1, max - 1));
    if (!reached()) best.optimal = branches.improve(best.pattern, bound) && best.optimal;
  }
  best.optimal = best.optimal || reached();
  return best;
}

}  // namespace starpipe::plan
