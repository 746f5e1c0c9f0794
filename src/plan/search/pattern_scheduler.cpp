// SPDX-License-Identifier: Apache-2.0
#include "plan/search/pattern_scheduler.hpp"

#include <algorithm>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

PatternScheduler::PatternScheduler(const Instance& instance)
    : instance_(instance), workers_(index(instance.workers)) {}

double PatternScheduler::due(int pass, int stage, int microbatch) const {
  return pass == 0 ? pattern_->forward[index(stage)] + forward_at_[index(microbatch)]
                   : pattern_->backward[index(stage)] + backward_at_[index(microbatch)];
}

bool PatternScheduler::make_lists() {
  const int all = instance_.microbatches;
  std::vector<int> forward(index(instance_.stages), 0);
  std::vector<int> backward(index(instance_.stages), 0);
  for (int w = 0; w < instance_.workers; ++w) {
    auto& list = workers_[index(w)].list;
    list.clear();
    double live = 0;
    while (true) {
      double earliest = never;
      int pass = 0;
      int stage = -1;
      for (const int s : instance_.stages_of[index(w)]) {
        const int f = forward[index(s)];
        const int b = backward[index(s)];
        if (f < all && due(0, s, f) < earliest) earliest = due(0, s, f), pass = 0, stage = s;
        if (b < f && due(1, s, b) < earliest) earliest = due(1, s, b), pass = 1, stage = s;
      }
      if (stage < 0) break;
      live += (pass == 0 ? 1 : -1) * instance_.stash[index(stage)];
      if (!instance_.fits(w, live)) return false;
      list.push_back(instance_.job(pass, stage, (pass == 0 ? forward : backward)[index(stage)]++));
    }
  }
  return true;
}

const PatternRun& PatternScheduler::run(const ShiftPattern& pattern, bool with_orders) {
  pattern_ = &pattern;
  result_.feasible = false;
  result_.orders.clear();
  forward_at_.clear();
  backward_at_.clear();
  for (int b = 0; b < instance_.microbatches; ++b) {
    const int first = b / pattern.group * pattern.group;
    forward_at_.push_back(pattern.period * (first + (b - first) * pattern.forward_spacing));
    backward_at_.push_back(pattern.period * (first + (b - first) * pattern.backward_spacing));
  }
  if (!make_lists()) return result_;
  arrival_.assign(instance_.jobs(), never);
  started_.assign(instance_.jobs(), false);
  for (auto& count : count_) count.assign(index(instance_.stages), 0);
  for (Worker& worker : workers_) worker.next = 0, worker.live = worker.free_at = worker.look_at = 0;
  for (int b = 0; b < instance_.microbatches; ++b) arrival_[instance_.job(0, 0, b)] = 0;
  if (with_orders) result_.orders.resize(workers_.size());

  for (JobId left = instance_.jobs(); left > 0;) {
    const auto worker =
        static_cast<int>(std::ranges::min_element(workers_, {}, &Worker::look_at) - workers_.begin());
    const double now = workers_[index(worker)].look_at;
    JobId job = 0;
    switch (now < never ? choose(worker, now, job) : Choice::stuck) {
      case Choice::stuck:
        result_.orders.clear();
        return result_;
      case Choice::wait:
        break;
      case Choice::job:
        start(worker, now, job);
        if (with_orders) result_.orders[index(worker)].push_back(job);
        --left;
    }
  }
  result_.feasible = true;
  result_.makespan = result_.mean_end = 0;
  for (const Worker& worker : workers_) {
    result_.makespan = std::max(result_.makespan, worker.free_at);
    result_.mean_end += worker.free_at / static_cast<double>(workers_.size());
  }
  return result_;
}

PatternScheduler::Choice PatternScheduler::choose(int w, double now, JobId& chosen) {
  Worker& worker = workers_[index(w)];
  while (worker.next < worker.list.size() && started_[worker.list[worker.next]]) ++worker.next;

  int backlog = 0;
  int weights_stage = -1;  // stage of the oldest W
  for (const int s : instance_.stages_of[index(w)]) {
    const int waiting = count_[1][index(s)] - count_[2][index(s)];
    backlog += waiting;
    if (waiting > 0 && (weights_stage < 0 || count_[2][index(s)] <= count_[2][index(weights_stage)]))
      weights_stage = s;
  }
  const bool has_weights = weights_stage >= 0;
  if (has_weights) chosen = instance_.job(2, weights_stage, count_[2][index(weights_stage)]);
  if (worker.next == worker.list.size()) {
    if (!has_weights) worker.look_at = never;
    return has_weights ? Choice::job : Choice::wait;
  }

  const JobId in_turn = worker.list[worker.next];
  const double gap = arrival_[in_turn] - now;
  const bool many = has_weights && backlog > pattern_->weight_backlog;
  if (gap <= 0) {
    const bool forward = Instance::pass_of(in_turn) == 0;
    const bool fits =
        !forward || instance_.fits(w, worker.live + instance_.stash[index(instance_.stage_of(in_turn))]);
    if (!fits && !has_weights) return Choice::stuck;
    if (fits && !many) chosen = in_turn;
    return Choice::job;
  }
  const bool weights_fit =
      has_weights && gap >= pattern_->weight_gap * instance_.time[2][index(weights_stage)];
  if (weights_fit && (many || pattern_->weights_before_early)) return Choice::job;
  if (early(w, now, gap, chosen) || weights_fit) return Choice::job;
  worker.look_at = arrival_[in_turn];
  return Choice::wait;
}

bool PatternScheduler::early(int w, double now, double gap, JobId& chosen) {
  double releasable = 0;  // memory that the waiting W would free
  for (const int s : instance_.stages_of[index(w)]) {
    releasable += (count_[1][index(s)] - count_[2][index(s)]) * instance_.stash[index(s)];
  }
  double earliest = never;
  const auto offer = [&](int pass, int s, int b, double share) {
    const JobId job = instance_.job(pass, s, b);
    const double time = due(pass, s, b);
    if (arrival_[job] > now || gap < share * instance_.time[index(pass)][index(s)] || time >= earliest)
      return;
    if (pass == 0 && !keeps_limit(w, job, instance_.stash[index(s)], releasable)) return;
    earliest = time;
    chosen = job;
  };
  for (const int s : instance_.stages_of[index(w)]) {
    const int f = count_[0][index(s)];
    const int b = count_[1][index(s)];
    if (b < f) offer(1, s, b, pattern_->backward_gap);
    if (f < instance_.microbatches) offer(0, s, f, pattern_->forward_gap);
  }
  return earliest < never;
}

bool PatternScheduler::keeps_limit(int w, JobId early, double size, double releasable) const {
  const Worker& worker = workers_[index(w)];
  if (!instance_.fits(w, worker.live + size)) return false;
  const double more = size + pattern_->spare * instance_.limits[index(w)];
  double live = worker.live - releasable;
  for (std::size_t i = worker.next; worker.list[i] != early; ++i) {
    if (!instance_.fits(w, live + more)) return false;
    const JobId job = worker.list[i];
    if (started_[job]) continue;
    live += (Instance::pass_of(job) == 0 ? 1 : -1) * instance_.stash[index(instance_.stage_of(job))];
  }
  return instance_.fits(w, live + more);
}

void PatternScheduler::start(int w, double now, JobId job) {
  Worker& worker = workers_[index(w)];
  const int pass = Instance::pass_of(job);
  const int s = instance_.stage_of(job);
  const int b = instance_.microbatch_of(job);
  const double end = now + instance_.time[index(pass)][index(s)];
  started_[job] = true;
  ++count_[index(pass)][index(s)];
  worker.free_at = worker.look_at = end;
  if (pass == 0) {
    worker.live += instance_.stash[index(s)];
    if (s + 1 < instance_.stages) {
      arrive(instance_.job(0, s + 1, b), end + instance_.forward_lag[index(s)], w);
    } else {
      arrive(instance_.job(1, s, b), end, w);
    }
  } else if (pass == 1) {
    if (s > 0) arrive(instance_.job(1, s - 1, b), end + instance_.backward_lag[index(s - 1)], w);
  } else {
    worker.live -= instance_.stash[index(s)];
  }
}

void PatternScheduler::arrive(JobId job, double time, int from) {
  arrival_[job] = time;
  const int w = instance_.worker_of[index(instance_.stage_of(job))];
  if (w == from) return;
  Worker& worker = workers_[index(w)];
  worker.look_at = std::min(worker.look_at, std::max(time, worker.free_at));
}

}  // namespace starpipe::plan
