// SPDX-License-Identifier: Apache-2.0
// The smallest makespan of small problems whose stashes may be copied, by branch and bound that shares no
// code with the search or with `exact_search.hpp`.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/search/search_problem.hpp"

namespace starpipe::plan::exact {

/// Branch and bound over partial schedules. Jobs are appended in the order of their starts, each as early as
/// the job before, its worker or channel, its data and the memory allow. Any order of micro-batches is tried,
/// different ones on each stage; only F of the first stage runs them in order, since they are alike.
///
/// Memory counts in time: a stash takes memory from the start of F, R or L to the end of W or O. So this also
/// tries schedules that no priority n can say, and its optimum may be below theirs.
///
/// Where workers share a link, one copy at a time passes it in each direction. The link must have no latency.
class CopyingBranchAndBound {
 public:
  explicit CopyingBranchAndBound(const SearchProblem& problem, long max_states)
      : problem_(problem),
        stages_(static_cast<int>(problem.stage_workers.size())),
        max_states_(max_states),
        rest_(index(stages_) * passes) {
    for (int s = 0; s < stages_; ++s) {
      rest(W, s) = time(W, s);
      rest(B, s) = time(B, s) + std::max(time(W, s), s > 0 ? lag(s - 1) + rest(B, s - 1) : 0);
      rest(R, s) = time(R, s) + rest(B, s);
      rest(L, s) = time(L, s) + rest(B, s);
      rest(O, s) = time(O, s) + rest(L, s);
    }
    for (int s = stages_ - 1; s >= 0; --s)
      rest(F, s) = time(F, s) + (s + 1 < stages_ ? lag(s) + rest(F, s + 1) : rest(B, s));
  }

  /// Returns the smallest makespan below `upper`, or `upper` if there is none. Returns nullopt if that takes
  /// too many states.
  std::optional<double> run(double upper) {
    best_ = upper;
    State state;
    state.end.assign(index(stages_ * problem_.microbatches) * passes, not_run);
    state.remade.assign(index(stages_ * problem_.microbatches), false);
    state.free_at.assign(index(problem_.workers), 0);
    state.channel.assign(index(problem_.workers) * 2, 0);
    state.held.assign(index(problem_.workers), 0);
    visit(state);
    if (states_ > max_states_) return std::nullopt;
    return best_;
  }

 private:
  enum : int { F, B, W, R, O, L };
  static constexpr int passes = 6;
  static constexpr double not_run = -1;
  static constexpr double never = std::numeric_limits<double>::infinity();

  struct State {
    std::vector<double> end;      // [stage, micro-batch, pass]
    std::vector<bool> remade;     // [stage, micro-batch], F kept no stash
    std::vector<double> free_at;  // [worker]
    std::vector<double> channel;  // [group of workers, direction]
    std::vector<double> held;     // [worker], memory taken and not freed by any W or O that was appended
    double now = 0;
    double makespan = 0;
  };

  [[nodiscard]] double time(int pass, int s) const {
    const Durations& d = problem_.costs.duration(s);
    if (pass == R) return d.F * problem_.remaking;
    if (pass == O || pass == L)
      return problem_.copies
                 ? problem_.costs.home_link(*problem_.copies).link.time(problem_.costs.size(s).stash)
                 : 0;
    return pass == F ? d.F : pass == B ? d.B : d.W;
  }
  [[nodiscard]] double lag(int s) const {
    return worker(s) == worker(s + 1) ? 0 : problem_.costs.link(worker(s), worker(s + 1)).alpha;
  }
  [[nodiscard]] int worker(int s) const { return problem_.stage_workers[index(s)]; }
  [[nodiscard]] double size(int s) const {
    return problem_.stash.size() == 1 ? problem_.stash[0] : problem_.stash[index(s)];
  }
  [[nodiscard]] double limit(int w) const {
    return problem_.memory_limits[problem_.memory_limits.size() == 1 ? 0 : index(w)] * (1 + 1e-9);
  }
  double& rest(int pass, int s) { return rest_[index(s * passes + pass)]; }
  [[nodiscard]] std::size_t pair(int s, int b) const { return index(s * problem_.microbatches + b); }
  [[nodiscard]] double end(const State& state, int pass, int s, int b) const {
    return state.end[pair(s, b) * passes + index(pass)];
  }
  [[nodiscard]] bool ran(const State& state, int pass, int s, int b) const {
    return end(state, pass, s, b) != not_run;
  }
  [[nodiscard]] std::size_t channel(int pass, int s) const {
    return index(worker(s) / problem_.costs.home_link(*problem_.copies).workers * 2 + (pass == L ? 1 : 0));
  }

  /// Returns when the inputs of a job are there; `never` if it cannot be appended next, or is not needed.
  [[nodiscard]] double arrival(const State& state, int pass, int s, int b) const {
    if (ran(state, pass, s, b)) return never;
    const auto after = [&](int before, int stage, double transfer = 0) {
      return ran(state, before, stage, b) ? end(state, before, stage, b) + transfer : never;
    };
    const bool remade = state.remade[pair(s, b)];
    switch (pass) {
      case F:
        if (s > 0) return after(F, s - 1, lag(s - 1));
        return b == 0 || ran(state, F, 0, b - 1) ? 0 : never;
      case R:
        return remade ? after(F, s) : never;
      case O:
        return problem_.copies && !remade && !ran(state, B, s, b) ? after(F, s) : never;
      case L:
        return after(O, s);
      case W:
        return after(B, s);
      default: {
        const double stash = remade ? after(R, s) : ran(state, O, s, b) ? after(L, s) : after(F, s);
        return std::max(stash, s + 1 < stages_ ? after(B, s + 1, lag(s)) : 0);
      }
    }
  }

  /// Returns the first time from `start` on at which the worker has room for a stash of stage s.
  [[nodiscard]] double room(const State& state, int s, double start) const {
    const int w = worker(s);
    double live = state.held[index(w)] + size(s);
    std::vector<std::pair<double, double>> freed;  // by W and O that have not ended at `start`
    for (int other = 0; other < stages_; ++other) {
      if (worker(other) != w) continue;
      for (int b = 0; b < problem_.microbatches; ++b) {
        for (const int pass : {W, O}) {
          if (end(state, pass, other, b) <= start) continue;
          freed.emplace_back(end(state, pass, other, b), size(other));
          live += size(other);
        }
      }
    }
    std::ranges::sort(freed);
    for (const auto& [at, memory] : freed) {
      if (live <= limit(w)) return start;
      live -= memory;
      start = at;
    }
    return live <= limit(w) ? start : never;
  }

  /// A makespan that no continuation can beat: the rest of each micro-batch, and the rest of the work.
  [[nodiscard]] double bound(const State& state) {
    double max = state.makespan;
    std::vector<double> work(index(problem_.workers), 0);
    for (int s = 0; s < stages_; ++s) {
      for (int b = 0; b < problem_.microbatches; ++b) {
        for (int pass = 0; pass < passes; ++pass) {
          if (pass < R && !ran(state, pass, s, b)) work[index(worker(s))] += time(pass, s);
          const double at = arrival(state, pass, s, b);
          if (at == never || (pass == O && at < never)) continue;
          const double free = pass == L ? state.channel[channel(pass, s)] : state.free_at[index(worker(s))];
          max = std::max(max, std::max({at, state.now, free}) + rest(pass, s));
        }
        if (state.remade[pair(s, b)] && !ran(state, R, s, b)) work[index(worker(s))] += time(R, s);
      }
    }
    for (int w = 0; w < problem_.workers; ++w) {
      if (work[index(w)] > 0)
        max = std::max(max, std::max(state.now, state.free_at[index(w)]) + work[index(w)]);
    }
    return max;
  }

  /// True if a state with the same jobs was at least as early in everything. Only then this one is left out.
  [[nodiscard]] bool dominated(const State& state) {
    std::vector<bool> key = state.remade;
    std::vector<double> times = {state.now, state.makespan};
    for (const double at : state.end) {
      key.push_back(at != not_run);
      times.push_back(std::max(at, state.now));
    }
    for (const auto* list : {&state.free_at, &state.channel}) {
      for (const double at : *list) times.push_back(std::max(at, state.now));
    }
    auto& known = seen_[key];
    const auto no_later = [](const std::vector<double>& a, const std::vector<double>& b) {
      return std::ranges::equal(a, b, [](double x, double y) { return x <= y + 1e-12; });
    };
    if (std::ranges::any_of(known, [&](const auto& other) { return no_later(other, times); })) return true;
    std::erase_if(known, [&](const auto& other) { return no_later(times, other); });
    known.push_back(std::move(times));
    return false;
  }

  struct Next {
    double start;
    int pass, stage, microbatch;
    bool remade;
  };

  [[nodiscard]] std::vector<Next> next_of(const State& state) const {
    std::vector<Next> next;
    for (int s = 0; s < stages_; ++s) {
      for (int b = 0; b < problem_.microbatches; ++b) {
        for (int pass = 0; pass < passes; ++pass) {
          const double at = arrival(state, pass, s, b);
          if (at == never) continue;
          const bool copy = pass == O || pass == L;
          const double free = copy ? state.channel[channel(pass, s)] : state.free_at[index(worker(s))];
          const double start = std::max({at, state.now, free});
          if (pass == F && problem_.may_recompute) next.push_back({start, pass, s, b, true});
          const bool takes = pass == F || pass == R || pass == L;
          const double with_room = takes ? room(state, s, start) : start;
          if (with_room < never) next.push_back({with_room, pass, s, b, false});
        }
      }
    }
    std::ranges::sort(next, {}, [](const Next& n) { return std::pair(n.start, n.pass == O ? 9 : -n.pass); });
    return next;
  }

  void visit(const State& state) {
    if (++states_ > max_states_ || bound(state) >= best_ * (1 - 1e-9) || dominated(state)) return;
    bool finished = true;
    for (int s = 0; s < stages_; ++s) {
      for (int b = 0; b < problem_.microbatches; ++b) finished = finished && ran(state, W, s, b);
    }
    if (finished) {
      best_ = std::min(best_, state.makespan);
      return;
    }
    for (const Next& n : next_of(state)) {
      State after = state;
      const auto w = index(worker(n.stage));
      const double end = n.start + time(n.pass, n.stage);
      after.end[pair(n.stage, n.microbatch) * passes + index(n.pass)] = end;
      if (n.remade) after.remade[pair(n.stage, n.microbatch)] = true;
      const bool copy = n.pass == O || n.pass == L;
      (copy ? after.channel[channel(n.pass, n.stage)] : after.free_at[w]) = end;
      after.now = n.start;
      after.makespan = std::max(after.makespan, end);
      const bool takes = (n.pass == F && !n.remade) || n.pass == R || n.pass == L;
      if (takes) after.held[w] += size(n.stage);
      if (n.pass == W || n.pass == O) after.held[w] -= size(n.stage);
      visit(after);
    }
  }

  const SearchProblem& problem_;
  int stages_;
  long max_states_;
  long states_ = 0;
  double best_ = 0;
  std::vector<double> rest_;  // from the start of the job to the end of its chain
  std::map<std::vector<bool>, std::vector<std::vector<double>>> seen_;
};

}  // namespace starpipe::plan::exact
