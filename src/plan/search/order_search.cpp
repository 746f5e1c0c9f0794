// SPDX-License-Identifier: Apache-2.0
#include "plan/search/order_search.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

constexpr double tiny = 1e-9;  // part of the makespan: times that differ by less are equal

}  // namespace

OrderSearch::OrderSearch(const Instance& instance, Orders orders)
    : instance_(instance),
      orders_(std::move(orders)),
      best_(orders_),
      pred_(instance.jobs()),
      succ_(instance.jobs()),
      position_(instance.jobs()),
      head_(instance.jobs()),
      tail_(instance.jobs()),
      waiting_(instance.jobs()) {
  for (JobId id = 0; id < instance.jobs(); ++id) {
    duration_.push_back(instance.time_of(id));
    worker_.push_back(instance.worker_of[index(instance.stage_of(id))]);
    memory_.push_back(instance.memory_change(id));
    const auto add = [](auto& links, const Link& link) {
      *std::ranges::find(links, none, &Link::job) = link;
    };
    instance.for_each_next(id, [&](JobId next, double lag) {
      add(pred_[next], {id, lag});
      add(succ_[id], {next, lag});
    });
  }
  evaluate();
  evaluate_tails();
  best_makespan_ = makespan_;
}

// The time at which the last of its inputs is on the job's worker.
double OrderSearch::inputs_arrival(JobId job) const {
  double time = 0;
  for (const Link& before : pred_[job]) {
    if (before.job != none) time = std::max(time, head_[before.job] + duration_[before.job] + before.lag);
  }
  return time;
}

// The longest path from the end of the job, through a job that needs its result, to the end of the schedule.
double OrderSearch::tail_after(JobId job) const {
  double time = 0;
  for (const Link& next : succ_[job]) {
    if (next.job != none) time = std::max(time, tail_[next.job] + next.lag);
  }
  return time;
}

// Sets the earliest starts, in a topological order. False if the orders have a cycle.
bool OrderSearch::evaluate() {
  topological_.clear();
  ready_.clear();
  for (const auto& order : orders_) {
    for (std::size_t i = 0; i < order.size(); ++i) {
      const JobId id = order[i];
      position_[id] = static_cast<std::uint32_t>(i);
      const auto inputs = std::ranges::count_if(pred_[id], [](const Link& link) { return link.job != none; });
      waiting_[id] = static_cast<std::uint8_t>((i > 0 ? 1 : 0) + inputs);
      if (waiting_[id] == 0) ready_.push_back(id);
    }
  }
  makespan_ = 0;
  while (!ready_.empty()) {
    const JobId id = ready_.back();
    ready_.pop_back();
    topological_.push_back(id);
    const auto& order = orders_[index(worker_[id])];
    const std::size_t i = position_[id];
    double start = 0;
    if (i > 0) start = head_[order[i - 1]] + duration_[order[i - 1]];
    start = std::max(start, inputs_arrival(id));
    head_[id] = start;
    makespan_ = std::max(makespan_, start + duration_[id]);
    if (i + 1 < order.size() && --waiting_[order[i + 1]] == 0) ready_.push_back(order[i + 1]);
    for (const Link& next : succ_[id]) {
      if (next.job != none && --waiting_[next.job] == 0) ready_.push_back(next.job);
    }
  }
  return topological_.size() == instance_.jobs();
}

void OrderSearch::evaluate_tails() {
  for (std::size_t k = topological_.size(); k-- > 0;) {
    const JobId id = topological_[k];
    const auto& order = orders_[index(worker_[id])];
    double rest = 0;
    if (position_[id] + 1 < order.size()) rest = tail_[order[position_[id] + 1]];
    rest = std::max(rest, tail_after(id));
    tail_[id] = rest + duration_[id];
  }
}

// Returns a random critical path, built from its last job back to its first.
std::vector<JobId> OrderSearch::critical_path(Random& random) const {
  const double same = tiny * makespan_;
  std::vector<JobId> last;
  for (const auto& order : orders_) {
    if (!order.empty() && head_[order.back()] + duration_[order.back()] >= makespan_ - same)
      last.push_back(order.back());
  }
  std::vector<JobId> path = {last[random.below(last.size())]};
  while (true) {
    const JobId id = path.back();
    const auto decides = [&](JobId before, double lag) {
      return head_[before] + duration_[before] + lag >= head_[id] - same;
    };
    const std::size_t i = position_[id];
    const JobId ahead = i > 0 ? orders_[index(worker_[id])][i - 1] : none;
    const bool by_worker = ahead != none && decides(ahead, 0);
    const auto input = std::ranges::find_if(
        pred_[id], [&](const Link& before) { return before.job != none && decides(before.job, before.lag); });
    const bool by_data = input != pred_[id].end();
    if (!by_worker && !by_data) break;
    const bool choose_worker = by_worker && (!by_data || random.chance(0.5));
    path.push_back(choose_worker ? ahead : input->job);
  }
  std::ranges::reverse(path);
  return path;
}

// A block is a run of consecutive critical jobs on one worker. Each job of a block may swap with its
// neighbour, or move to the front or to the end of the block.
void OrderSearch::collect_moves(const std::vector<JobId>& path) {
  moves_.clear();
  for (std::size_t first = 0, last = 0; first < path.size(); first = last + 1) {
    const int worker = worker_[path[first]];
    const auto follows = [&](std::size_t k) {
      return worker_[path[k]] == worker && position_[path[k]] == position_[path[k - 1]] + 1;
    };
    for (last = first; last + 1 < path.size() && follows(last + 1);) ++last;
    const std::size_t begin = position_[path[first]];
    const std::size_t end = position_[path[last]];
    for (std::size_t i = begin; i < end; ++i) offer(worker, i, i + 1);
    for (std::size_t i = begin + 2; i <= end; ++i) offer(worker, i, begin);
    for (std::size_t i = begin; i + 1 < end; ++i) offer(worker, i, end);
  }
}

void OrderSearch::offer(int worker, std::size_t from, std::size_t to) {
  Move move{.worker = worker, .from = from, .to = to};
  if (!cannot_cycle(move) || !keeps_limit(move)) return;
  move.estimate = estimate(move);
  moves_.push_back(move);
}

// Returns a sufficient condition, by the heads and tails before the move, where no lag is negative. A job may
// move behind the target if its result cannot be needed by the target: every successor has less time left
// after it than the target has. It may move before the target if it cannot depend on the target: its
// predecessor starts before the target ends.
bool OrderSearch::cannot_cycle(const Move& move) const {
  const auto& order = orders_[index(move.worker)];
  const JobId moved = order[move.from];
  const JobId target = order[move.to];
  const double same = tiny * makespan_;
  if (move.from < move.to) {
    return std::ranges::all_of(succ_[moved], [&](const Link& next) {
      if (next.job == none) return true;
      if (worker_[next.job] == move.worker) return position_[next.job] > move.to;
      return tail_[next.job] - duration_[next.job] < tail_[target] - same;
    });
  }
  return std::ranges::all_of(pred_[moved], [&](const Link& before) {
    if (before.job == none) return true;
    if (worker_[before.job] == move.worker) return position_[before.job] < move.to;
    return head_[before.job] < head_[target] + duration_[target] - same;
  });
}

template <class Function>
void OrderSearch::for_each_passed(const Move& move, Function&& f) {
  if (move.from < move.to) {
    for (std::size_t i = move.from + 1; i <= move.to; ++i) f(i);
  } else {
    for (std::size_t i = move.to; i < move.from; ++i) f(i);
  }
}

bool OrderSearch::keeps_limit(const Move& move) const {
  const auto& order = orders_[index(move.worker)];
  const double own = memory_[order[move.from]];
  // Passed jobs run with more memory in use if an F moves to the front or a W to the end.
  const bool needs_more = move.from < move.to ? own < 0 : own > 0;
  if (!needs_more) return true;
  double live = 0;
  for (std::size_t i = 0; i < std::min(move.from, move.to); ++i) live += memory_[order[i]];
  double peak = move.from < move.to ? live : live += own;
  for_each_passed(move, [&](std::size_t i) { peak = std::max(peak, live += memory_[order[i]]); });
  return instance_.fits(move.worker, peak);
}

// Returns the longest path through the jobs that change places, by the heads and tails before the move.
double OrderSearch::estimate(const Move& move) {
  const auto& order = orders_[index(move.worker)];
  const std::size_t low = std::min(move.from, move.to);
  const std::size_t high = std::max(move.from, move.to);
  moved_.clear();
  if (move.from > move.to) moved_.push_back(order[move.from]);
  for_each_passed(move, [&](std::size_t i) { moved_.push_back(order[i]); });
  if (move.from < move.to) moved_.push_back(order[move.from]);
  moved_heads_.resize(moved_.size());
  double free_at = low > 0 ? head_[order[low - 1]] + duration_[order[low - 1]] : 0;
  for (std::size_t k = 0; k < moved_.size(); ++k) {
    const JobId id = moved_[k];
    free_at = std::max(free_at, inputs_arrival(id));
    moved_heads_[k] = free_at;
    free_at += duration_[id];
  }
  double rest = high + 1 < order.size() ? tail_[order[high + 1]] : 0;
  double longest = 0;
  for (std::size_t k = moved_.size(); k-- > 0;) {
    const JobId id = moved_[k];
    rest = std::max(rest, tail_after(id));
    rest += duration_[id];
    longest = std::max(longest, moved_heads_[k] + rest);
  }
  return longest;
}

bool OrderSearch::is_tabu(const Move& move, long now) const {
  const auto& order = orders_[index(move.worker)];
  const JobId moved = order[move.from];
  bool forbidden = false;
  for_each_passed(move, [&](std::size_t i) {
    const auto found = tabu_.find(move.from < move.to ? pair(order[i], moved) : pair(moved, order[i]));
    forbidden = forbidden || (found != tabu_.end() && found->second > now);
  });
  return forbidden;
}

void OrderSearch::forbid_reversal(const Move& move, long until) {
  const auto& order = orders_[index(move.worker)];
  const JobId moved = order[move.from];
  for_each_passed(move, [&](std::size_t i) {
    tabu_[move.from < move.to ? pair(moved, order[i]) : pair(order[i], moved)] = until;
  });
}

void OrderSearch::apply(const Move& move) {
  auto& order = orders_[index(move.worker)];
  const auto at = [&](std::size_t i) { return order.begin() + static_cast<std::ptrdiff_t>(i); };
  if (move.from < move.to) {
    std::rotate(at(move.from), at(move.from + 1), at(move.to + 1));
  } else {
    std::rotate(at(move.to), at(move.from), at(move.from + 1));
  }
}

void OrderSearch::make(const Move& move) {
  apply(move);
  if (!evaluate()) {  // a cycle is possible between equal times, and where R begins before the gradient comes
    apply({.worker = move.worker, .from = move.to, .to = move.from});
    evaluate();
  }
  evaluate_tails();
}

const OrderSearch::Move& OrderSearch::select(long now, Random& random) const {
  const Move* best = nullptr;
  std::size_t equals = 0;
  for (const Move& move : moves_) {
    if (is_tabu(move, now) && move.estimate >= best_makespan_ * (1 - tiny)) continue;
    if (best == nullptr || move.estimate < best->estimate * (1 - tiny)) {
      best = &move;
      equals = 1;
    } else if (move.estimate <= best->estimate * (1 + tiny) && random.below(++equals) == 0) {
      best = &move;
    }
  }
  return best != nullptr ? *best : moves_[random.below(moves_.size())];
}

void OrderSearch::shake(int moves, Random& random) {
  for (int k = 0; k < moves; ++k) {
    const auto worker = random.below(orders_.size());
    const std::size_t count = orders_[worker].size();
    const std::size_t from = random.below(count);
    const std::size_t reach = 1 + random.below(4);
    const std::size_t to =
        random.chance(0.5) ? std::min(count - 1, from + reach) : from - std::min(from, reach);
    const Move move{.worker = static_cast<int>(worker), .from = from, .to = to};
    if (from != to && cannot_cycle(move) && keeps_limit(move)) make(move);
  }
}

long OrderSearch::run(long max, double good_enough, Random& random, const std::function<bool(long)>& stop) {
  const long patience = std::min(3000L, 10L * static_cast<long>(instance_.jobs()));
  const long often = std::clamp(200'000L / static_cast<long>(instance_.jobs()), 1L, 64L);
  long improved = 0;
  long now = 0;
  for (; now < max && now - improved < patience && best_makespan_ > good_enough; ++now) {
    if (now % often == 0 && stop(now)) break;
    const std::vector<JobId> path = critical_path(random);
    collect_moves(path);
    if (moves_.empty()) break;  // the path has data dependencies only: the makespan is optimal
    const Move move = select(now, random);
    forbid_reversal(move, now + 10 + static_cast<long>(random.below(20) + path.size() / 8));
    make(move);
    if (makespan_ >= best_makespan_ * (1 - tiny)) continue;
    best_makespan_ = makespan_;
    best_ = orders_;
    improved = now;
  }
  return std::max(now, 1L);
}

namespace {

/// Returns, for each stage, the memory of one stash of each later stage of its worker.
std::vector<double> later_stashes(const Instance& instance) {
  std::vector<double> later(index(instance.stages), 0);
  for (const auto& stages : instance.stages_of) {
    for (std::size_t k = stages.size(); k-- > 1;) {
      later[index(stages[k - 1])] = later[index(stages[k])] + instance.stash[index(stages[k])];
    }
  }
  return later;
}

double mean_duration(const Instance& instance) {
  double mean = 0;
  for (const auto& times : instance.time) {
    for (const double time : times) mean += time / static_cast<double>(3 * times.size());
  }
  return mean;
}

/// The jobs that have started, with the times at which the others can.
class PartialRun {
 public:
  explicit PartialRun(const Instance& instance)
      : instance_(instance),
        arrival_(instance.jobs(), never),
        free_at_(index(instance.workers), 0),
        live_(index(instance.workers), 0),
        later_(later_stashes(instance)),
        orders_(index(instance.workers)) {
    for (int b = 0; b < instance.microbatches; ++b) arrival_[instance.job(0, 0, b)] = 0;
    for (auto& of_pass : next_) of_pass.assign(index(instance.stages), 0);
  }

  /// Returns the earliest start of the next job of a stage's pass; `never` if it cannot start yet.
  [[nodiscard]] double earliest(int pass, int stage) const {
    const int b = next_[index(pass)][index(stage)];
    if (b == instance_.microbatches) return never;
    const double arrival = arrival_[instance_.job(pass, stage, b)];
    if (arrival == never) return never;
    const std::size_t s = index(stage);
    const int worker = instance_.worker_of[s];
    const std::size_t w = index(worker);
    const double more = instance_.memory_change(instance_.job(pass, stage, b));
    const double reserve = pass == 0 ? later_[s] : 0;
    if (more > 0 && !instance_.fits(worker, live_[w] + more + reserve)) return never;
    return std::max(free_at_[w], arrival);
  }

  /// Starts the next job of a stage's pass.
  void start(int pass, int stage) {
    const int b = next_[index(pass)][index(stage)]++;
    const JobId job = instance_.job(pass, stage, b);
    const std::size_t w = index(instance_.worker_of[index(stage)]);
    const double end = std::max(free_at_[w], arrival_[job]) + instance_.time_of(job);
    free_at_[w] = end;
    orders_[w].push_back(job);
    live_[w] += instance_.memory_change(job);
    instance_.for_each_next(job, [&](JobId next, double lag) { arrival_[next] = end + lag; });
  }

  Orders take_orders() { return std::move(orders_); }

 private:
  const Instance& instance_;
  std::vector<double> arrival_;           // [JobId], arrival of its inputs
  std::array<std::vector<int>, 3> next_;  // [pass][stage], next micro-batch
  std::vector<double> free_at_;           // [worker]
  std::vector<double> live_;              // [worker], memory in use
  std::vector<double> later_;             // [stage]
  Orders orders_;
};

}  // namespace

Orders random_orders(const Instance& instance, Random& random) {
  PartialRun run(instance);
  const double delay = mean_duration(instance) * random.uniform(0, 3);
  const std::array<double, 3> handicap = {random.uniform(0, delay), random.uniform(0, delay),
                                          random.uniform(0, delay)};
  for (JobId left = instance.jobs(); left > 0; --left) {
    double earliest = never;
    int pass = 0;
    int stage = 0;
    for (int s = 0; s < instance.stages; ++s) {
      for (int d = 0; d < 3; ++d) {
        const double start = run.earliest(d, s);
        if (start == never) continue;
        const double time = start + handicap[index(d)] + random.uniform(0, delay);
        if (time < earliest) earliest = time, pass = d, stage = s;
      }
    }
    if (earliest == never) throw std::logic_error("random orders: no job fits into the memory");
    run.start(pass, stage);
  }
  return run.take_orders();
}

}  // namespace starpipe::plan
