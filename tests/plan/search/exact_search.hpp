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
///
/// Where the problem lets stashes have no home, each F is tried with and without its stash, and R (pass 3) is
/// a job like the others: it waits for its F, takes as long, and may run at any time before its B.
class BranchAndBound {
 public:
  explicit BranchAndBound(const SearchProblem& problem, long max_states = 3'000'000)
      : problem_(problem),
        stages_(static_cast<int>(problem.stage_workers.size())),
        max_states_(max_states),
        tail_(index(stages_) * passes) {
    for (int s = 0; s < stages_; ++s) {
      tail(2, s) = time(2, s);
      const double next = s > 0 ? lag(s - 1) + tail(1, s - 1) : 0;
      tail(1, s) = time(1, s) + std::max(time(2, s), next);
    }
    for (int s = stages_ - 1; s >= 0; --s) {
      tail(0, s) = time(0, s) + (s + 1 < stages_ ? lag(s) + tail(0, s + 1) : tail(1, s));
      tail(3, s) = time(3, s) + tail(1, s);
    }
  }

  /// The smallest makespan below `upper`, or `upper` if there is none.
  double run(double upper) {
    best_ = upper;
    State state;
    state.done.assign(index(stages_) * passes, 0);
    state.remade.assign(index(stages_) * index(problem_.microbatches), 0);
    state.free_at.assign(index(problem_.workers), 0);
    state.live.assign(index(problem_.workers), 0);
    state.end.assign(index(stages_) * passes * index(problem_.microbatches), 0);
    visit(state);
    return best_;
  }

 private:
  static constexpr int passes = 4;

  struct State {
    std::vector<int> done;        // [stage, pass], number of finished jobs
    std::vector<int> remade;      // [stage, micro-batch], 1 if the stash has no home
    std::vector<double> free_at;  // [worker]
    std::vector<double> live;     // [worker], memory in use
    std::vector<double> end;      // [stage, pass, micro-batch]
    double now = 0;
    double makespan = 0;
  };

  [[nodiscard]] double time(int pass, int s) const {
    const Durations& d = problem_.costs.duration(s);
    return pass == 3 ? d.F * problem_.remaking : pass == 0 ? d.F : pass == 1 ? d.B : d.W;
  }
  [[nodiscard]] double lag(int s) const {  // from s to s + 1 and back
    // Without bytes, so both ways take as long.
    return worker(s) == worker(s + 1) ? 0 : problem_.costs.link(worker(s), worker(s + 1)).alpha;
  }
  [[nodiscard]] int worker(int s) const { return problem_.stage_workers[index(s)]; }
  [[nodiscard]] double size(int s) const {
    return problem_.stash.size() == 1 ? problem_.stash[0] : problem_.stash[index(s)];
  }
  double& tail(int pass, int s) { return tail_[index(s * passes + pass)]; }
  [[nodiscard]] std::size_t job(int pass, int s, int b) const {
    return index((s * passes + pass) * problem_.microbatches + b);
  }

  [[nodiscard]] bool remade(const State& state, int s, int b) const {
    return state.remade[index(s * problem_.microbatches + b)] != 0;
  }
  /// The micro-batch of the next job of a pass; their number where none is left.
  [[nodiscard]] int next_of(const State& state, int pass, int s) const {
    const int done = state.done[index(s * passes + pass)];
    if (pass != 3) return done;
    int before = 0;
    for (int b = 0; b < state.done[index(s * passes)]; ++b) {
      if (remade(state, s, b) && before++ == done) return b;
    }
    return problem_.microbatches;
  }
  /// Arrival of the inputs of a stage's next job of a pass; infinite if the job that makes them has not
  /// started.
  [[nodiscard]] double arrival(const State& state, int pass, int s) const {
    const int b = next_of(state, pass, s);
    if (pass == 3) return state.end[job(0, s, b)];
    int from_pass = pass;
    int from = s;
    if (pass == 0) from = s - 1;
    if (pass == 1 && s + 1 == stages_) from_pass = 0;
    if (pass == 1 && s + 1 < stages_) from = s + 1;
    if (pass == 2) from_pass = 1;
    if (from < 0) return 0;
    if (state.done[index(from * passes + from_pass)] <= b) return std::numeric_limits<double>::infinity();
    const double at = state.end[job(from_pass, from, b)] + (from == s ? 0 : lag(std::min(from, s)));
    if (pass != 1 || !remade(state, s, b)) return at;
    if (next_of(state, 3, s) <= b) return std::numeric_limits<double>::infinity();
    return std::max(at, state.end[job(3, s, b)]);
  }

  /// The number of R whose F has run.
  [[nodiscard]] int waiting(const State& state, int s) const {
    int count = -state.done[index(s * passes + 3)];
    for (int b = 0; b < state.done[index(s * passes)]; ++b) count += remade(state, s, b) ? 1 : 0;
    return count;
  }

  [[nodiscard]] double bound(const State& state) {
    double max = state.makespan;
    for (int w = 0; w < problem_.workers; ++w) {
      double rest = 0;
      double start = std::numeric_limits<double>::infinity();
      for (int s = 0; s < stages_; ++s) {
        if (worker(s) != w) continue;
        for (int pass = 0; pass < passes; ++pass) {
          // Of R, those whose F has run.
          const int left =
              pass == 3 ? waiting(state, s) : problem_.microbatches - state.done[index(s * passes + pass)];
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
        const auto produced = state.done[index(s * passes + pass)];
        int used = state.done[index(s * passes + 2)];
        if (pass == 0)
          used = s + 1 < stages_ ? state.done[index((s + 1) * passes)] : state.done[index(s * passes + 1)];
        if (pass == 1 && s > 0) used = std::min<int>(used, state.done[index((s - 1) * passes + 1)]);
        for (int b = used; b < produced; ++b)
          times.push_back(std::max(state.now, state.end[job(pass, s, b)]));
      }
    }
    for (int s = 0; problem_.may_recompute && s < stages_; ++s) {
      for (int b = state.done[index(s * passes + 1)]; b < state.done[index(s * passes)]; ++b) {
        if (remade(state, s, b)) times.push_back(std::max(state.now, state.end[job(0, s, b)]));
        if (remade(state, s, b)) times.push_back(std::max(state.now, state.end[job(3, s, b)]));
      }
    }
    std::vector<int> key = state.done;
    key.insert(key.end(), state.remade.begin(), state.remade.end());
    auto& known = seen_[key];
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
      bool remade;
    };
    std::vector<Next> next;
    bool finished = true;
    for (int s = 0; s < stages_; ++s) {
      const auto w = index(worker(s));
      for (int pass = 0; pass < passes; ++pass) {
        if (next_of(state, pass, s) == problem_.microbatches) continue;
        finished = false;
        const double start = std::max(state.free_at[w], arrival(state, pass, s));
        if (std::isinf(start) || start < state.now - 1e-12) continue;
        if (pass == 0 && problem_.may_recompute) next.push_back({start, pass, s, true});
        if ((pass == 0 || pass == 3) &&
            state.live[w] + size(s) >
                problem_.memory_limits[problem_.memory_limits.size() == 1 ? 0 : w] * (1 + 1e-9))
          continue;
        next.push_back({start, pass, s, false});
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
      auto& done = after.done[index(n.stage * passes + n.pass)];
      const double end = n.start + time(n.pass, n.stage);
      const int b = next_of(state, n.pass, n.stage);
      after.end[job(n.pass, n.stage, b)] = end;
      if (n.remade) after.remade[index(n.stage * problem_.microbatches + b)] = 1;
      ++done;
      after.free_at[w] = end;
      after.now = n.start;
      after.makespan = std::max(after.makespan, end);
      const bool makes_stash = (n.pass == 0 && !n.remade) || n.pass == 3;
      after.live[w] += makes_stash ? size(n.stage) : n.pass == 2 ? -size(n.stage) : 0;
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
