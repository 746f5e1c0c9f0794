// SPDX-License-Identifier: Apache-2.0
// The smallest makespan of small problems, by branch and bound that shares no code with the search.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <vector>

#include "plan/search/lower_bound.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan::exact {

/// Branch and bound over partial schedules. Jobs are appended in the order of their starts, each as early as
/// its worker and its data allow. Each stage and pass runs the micro-batches in order: micro-batches are
/// alike, so exchanging them changes neither times nor memory. A state is cut off if its bound is not below
/// the best makespan, or if another state with the same finished jobs was as early in everything that matters
/// later.
class BranchAndBound {
 public:
  explicit BranchAndBound(const SearchProblem& problem, long max_states = 3'000'000)
      : problem_(problem),
        stages_(static_cast<int>(problem.stage_workers.size())),
        max_states_(max_states),
        tail_(index(stages_) * 3) {
    for (int s = 0; s < stages_; ++s) {
      tail(2, s) = time(2, s);
      const double next = s > 0 ? lag(s - 1) + tail(1, s - 1) : 0;
      tail(1, s) = time(1, s) + std::max(time(2, s), next);
    }
    for (int s = stages_ - 1; s >= 0; --s) {
      tail(0, s) = time(0, s) + (s + 1 < stages_ ? lag(s) + tail(0, s + 1) : tail(1, s));
    }
  }

  /// The smallest makespan below `upper`, or `upper` if there is none.
  double run(double upper) {
    best_ = upper;
    State state;
    state.done.assign(index(stages_) * 3, 0);
    state.free_at.assign(index(problem_.workers), 0);
    state.live.assign(index(problem_.workers), 0);
    state.end.assign(index(stages_) * 3 * index(problem_.microbatches), 0);
    visit(state);
    return best_;
  }

 private:
  struct State {
    std::vector<int> done;        // [stage, pass], number of finished jobs
    std::vector<double> free_at;  // [worker]
    std::vector<double> live;     // [worker], memory in use
    std::vector<double> end;      // [stage, pass, micro-batch]
    double now = 0;
    double makespan = 0;
  };

  [[nodiscard]] double time(int pass, int s) const {
    const Durations& d = problem_.costs.duration(s);
    return pass == 0 ? d.F : pass == 1 ? d.B : d.W;
  }
  [[nodiscard]] double lag(int s) const {  // from s to s + 1 and back
    // Without bytes, so both ways take as long.
    return worker(s) == worker(s + 1) ? 0 : problem_.costs.link(worker(s), worker(s + 1)).alpha;
  }
  [[nodiscard]] int worker(int s) const { return problem_.stage_workers[index(s)]; }
  [[nodiscard]] double size(int s) const {
    return problem_.stash.size() == 1 ? problem_.stash[0] : problem_.stash[index(s)];
  }
  double& tail(int pass, int s) { return tail_[index(s * 3 + pass)]; }
  [[nodiscard]] std::size_t job(int pass, int s, int b) const {
    return index((s * 3 + pass) * problem_.microbatches + b);
  }

  /// Arrival of the inputs of a stage's next job of a pass; infinite if the job that makes them has not
  /// started.
  [[nodiscard]] double arrival(const State& state, int pass, int s) const {
    const int b = state.done[index(s * 3 + pass)];
    int from_pass = pass;
    int from = s;
    if (pass == 0) from = s - 1;
    if (pass == 1 && s + 1 == stages_) from_pass = 0;
    if (pass == 1 && s + 1 < stages_) from = s + 1;
    if (pass == 2) from_pass = 1;
    if (from < 0) return 0;
    if (state.done[index(from * 3 + from_pass)] <= b) return std::numeric_limits<double>::infinity();
    return state.end[job(from_pass, from, b)] + (from == s ? 0 : lag(std::min(from, s)));
  }

  [[nodiscard]] double bound(const State& state) {
    double max = state.makespan;
    for (int w = 0; w < problem_.workers; ++w) {
      double rest = 0;
      double start = std::numeric_limits<double>::infinity();
      for (int s = 0; s < stages_; ++s) {
        if (worker(s) != w) continue;
        for (int pass = 0; pass < 3; ++pass) {
          const int left = problem_.microbatches - state.done[index(s * 3 + pass)];
          if (left == 0) continue;
          rest += left * time(pass, s);
          const double at = std::max(state.free_at[index(w)], arrival(state, pass, s));
          if (std::isinf(at)) continue;
          // The last of these jobs starts after all others, and is followed by its tail.
          max = std::max(max, at + (left - 1) * time(pass, s) + tail(pass, s));
          start = std::min(start, at);
        }
      }
      // No remaining job of the worker starts before `now`, the start of the job that was appended last.
      if (rest > 0) max = std::max(max, std::max(state.free_at[index(w)], state.now) + rest);
    }
    return max;
  }

  [[nodiscard]] bool dominated(const State& state) {
    std::vector<double> times = {state.now, state.makespan};
    for (const double at : state.free_at) times.push_back(std::max(at, state.now));
    for (int s = 0; s < stages_; ++s) {
      for (int pass = 0; pass < 2; ++pass) {
        // Results that some job still needs: those that the slowest consumer has not used.
        const auto produced = state.done[index(s * 3 + pass)];
        int used = state.done[index(s * 3 + 2)];
        if (pass == 0) used = s + 1 < stages_ ? state.done[index((s + 1) * 3)] : state.done[index(s * 3 + 1)];
        if (pass == 1 && s > 0) used = std::min<int>(used, state.done[index((s - 1) * 3 + 1)]);
        for (int b = used; b < produced; ++b)
          times.push_back(std::max(state.now, state.end[job(pass, s, b)]));
      }
    }
    auto& known = seen_[state.done];
    const auto no_later = [](const std::vector<double>& a, const std::vector<double>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] > b[i] + 1e-12) return false;
      }
      return true;
    };
    if (std::ranges::any_of(known, [&](const auto& other) { return no_later(other, times); })) return true;
    std::erase_if(known, [&](const auto& other) { return no_later(times, other); });
    known.push_back(std::move(times));
    return false;
  }

  void visit(const State& state) {
    if (++states_ > max_states_) throw std::runtime_error("too many states for branch and bound");
    if (bound(state) >= best_ * (1 - 1e-9)) return;
    if (dominated(state)) return;
    struct Next {
      double start;
      int pass, stage;
    };
    std::vector<Next> next;
    bool finished = true;
    for (int s = 0; s < stages_; ++s) {
      const auto w = index(worker(s));
      for (int pass = 0; pass < 3; ++pass) {
        if (state.done[index(s * 3 + pass)] == problem_.microbatches) continue;
        finished = false;
        const double start = std::max(state.free_at[w], arrival(state, pass, s));
        if (std::isinf(start) || start < state.now - 1e-12) continue;
        if (pass == 0 && state.live[w] + size(s) >
                             problem_.memory_limits[problem_.memory_limits.size() == 1 ? 0 : w] * (1 + 1e-9))
          continue;
        next.push_back({start, pass, s});
      }
    }
    if (finished) {
      best_ = std::min(best_, state.makespan);
      return;
    }
    std::ranges::sort(next, {}, [](const Next& n) { return std::pair(n.start, -n.pass); });
    for (const Next& n : next) {
      State after = state;
      const auto w = index(worker(n.stage));
      auto& done = after.done[index(n.stage * 3 + n.pass)];
      const double end = n.start + time(n.pass, n.stage);
      after.end[job(n.pass, n.stage, done)] = end;
      ++done;
      after.free_at[w] = end;
      after.now = n.start;
      after.makespan = std::max(after.makespan, end);
      after.live[w] += n.pass == 0 ? size(n.stage) : n.pass == 2 ? -size(n.stage) : 0;
      visit(after);
    }
  }

  const SearchProblem& problem_;
  int stages_;
  long max_states_;
  long states_ = 0;
  double best_ = 0;
  std::vector<double> tail_;  // from the start of the job to the end of its chain
  std::map<std::vector<int>, std::vector<std::vector<double>>> seen_;
};

}  // namespace starpipe::plan::exact
