// SPDX-License-Identifier: Apache-2.0
#include "plan/search/shift_pattern.hpp"

#include <algorithm>
#include <cmath>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

/// The busiest worker's mean duration of a job, and its time for one micro-batch.
struct Scale {
  double job = 1;
  double microbatch = 1;
};

Scale scale_of(const Instance& instance) {
  Scale scale{0, 0};
  for (const auto& stages : instance.stages_of) {
    double time = 0;
    for (const int s : stages)
      time += instance.time[0][index(s)] + instance.time[1][index(s)] + instance.time[2][index(s)];
    if (time > scale.microbatch) scale = {time / static_cast<double>(3 * stages.size()), time};
  }
  return scale.microbatch > 0 ? scale : Scale{};
}

/// True if `s` is the last stage of its chunk: after it, the chain turns back or starts again at worker 0.
bool ends_chunk(const Instance& instance, int s) { return (s + 1) % instance.workers == 0; }

/// Sets the due times along the chain; `step(pass, stage)` is the time from a pass of a stage to the next
/// pass.
template <class Step>
void lay_chain(ShiftPattern& pattern, const Instance& instance, Step&& step) {
  double time = 0;
  for (int s = 0; s < instance.stages; ++s) {
    pattern.forward.push_back(time);
    time += step(0, s);
  }
  pattern.backward.resize(index(instance.stages));
  for (int s = instance.stages - 1; s >= 0; --s) {
    pattern.backward[index(s)] = time;
    time += step(1, s);
  }
}

/// Returns a pattern with the real durations and transfers, and the same wait at each stage of a chunk.
ShiftPattern timed_pattern(const Instance& instance, Random& random, const Scale& scale) {
  ShiftPattern pattern;
  pattern.period = scale.microbatch * random.uniform(0.9, 1.4);
  const double share = random.uniform(0, 1);
  const double max = share * share * 6 * scale.job;
  const int chunks = ceil_div(instance.stages, instance.workers);
  std::array<std::vector<double>, 2> wait;
  std::array<std::vector<double>, 2> turn;
  for (const std::size_t pass : {0U, 1U}) {
    for (int c = 0; c < chunks; ++c) {
      wait[pass].push_back(random.uniform(0, max));
      turn[pass].push_back(random.uniform(0, 2 * max));
    }
  }
  lay_chain(pattern, instance, [&](int pass, int s) {
    const auto p = index(pass);
    const auto chunk = index(s / instance.workers);
    const bool at_turn = pass == 0 ? ends_chunk(instance, s) : s % instance.workers == 0;
    const double lag = pass == 0 ? instance.forward_lag[index(s)]
                       : s > 0   ? instance.backward_lag[index(s - 1)]
                                 : 0;
    return instance.time[p][index(s)] + lag + (at_turn ? turn[p][chunk] : wait[p][chunk]);
  });
  return pattern;
}

/// Returns a pattern with passes of length one and whole distances, as in Controllable Memory, appendix A.
/// Distances may differ between the first workers and the others. In most patterns B mirrors F.
ShiftPattern grid_pattern(const Instance& instance, Random& random) {
  ShiftPattern pattern;
  const int chunks = ceil_div(instance.stages, instance.workers);
  pattern.period = 3 * chunks;
  const int split = random.chance(0.5) ? instance.workers : random.between(1, instance.workers);
  const int max = random.chance(0.5) ? 2 : 4;
  const bool mirrored = random.chance(0.75);
  std::array<std::vector<std::array<int, 2>>, 2> distance;
  std::array<std::vector<int>, 2> turn;
  for (const std::size_t pass : {0U, 1U}) {
    for (int c = 0; c < chunks; ++c) {
      distance[pass].push_back({random.between(1, max), random.between(1, max)});
      turn[pass].push_back(random.between(1, 2 * max));
    }
  }
  if (mirrored) std::reverse_copy(distance[0].begin(), distance[0].end(), distance[1].begin());
  lay_chain(pattern, instance, [&](int pass, int s) {
    const auto p = index(pass);
    const auto chunk = index(s / instance.workers);
    const int to = pass == 0 ? s + 1 : s - 1;
    if (pass == 0 ? ends_chunk(instance, s) : s % instance.workers == 0) return turn[p][chunk];
    if (to >= instance.stages) return turn[p][chunk];
    const int first = std::min(instance.worker_of[index(s)], instance.worker_of[index(to)]);
    return distance[p][chunk][first < split ? 0 : 1];
  });
  return pattern;
}

/// Shifts F of `stage` and of all later stages; B of all stages as well, unless `forward_only`.
void shift_from_forward(ShiftPattern& pattern, std::size_t stage, double shift, bool forward_only) {
  for (std::size_t s = stage; s < pattern.forward.size(); ++s) pattern.forward[s] += shift;
  if (forward_only) return;
  for (double& due : pattern.backward) due += shift;
}

/// Shifts B of `stage` and of all stages whose B comes later.
void shift_from_backward(ShiftPattern& pattern, std::size_t stage, double shift) {
  for (std::size_t s = 0; s <= stage; ++s) pattern.backward[s] += shift;
}

/// Changes the period, or a distance within groups.
void change_distances(ShiftPattern& pattern, Random& random) {
  if (random.chance(0.5)) {
    pattern.period *= random.uniform(0.97, 1.03);
  } else {
    (random.chance(0.5) ? pattern.forward_spacing : pattern.backward_spacing) *= random.uniform(0.8, 1.2);
  }
}

/// Changes a rule for when workers leave the order of the due times.
void change_rules(ShiftPattern& pattern, const Instance& instance, Random& random) {
  switch (random.below(5)) {
    case 0:
      pattern.weight_gap = random.uniform(0, 1.2);
      break;
    case 1:
      pattern.forward_gap = random.uniform(0, 2);
      break;
    case 2:
      pattern.backward_gap = random.uniform(0, 2);
      break;
    case 3:
      pattern.weight_backlog = random.chance(0.5) ? 1 << 30 : random.between(0, 2 * instance.stages);
      break;
    default:
      pattern.weights_before_early = random.chance(0.5);
      pattern.spare = random.chance(0.5) ? 0 : random.uniform(0, 1);
  }
}

/// Changes the share of the micro-batches whose stashes have no home, in one chunk or in all.
void change_homes(ShiftPattern& pattern, Random& random) {
  const auto share = [&](double now) {
    if (random.chance(0.2)) return 0.0;
    if (random.chance(0.5)) return random.uniform(0, 1);
    return std::clamp(now + random.uniform(-0.1, 0.1), 0.0, 1.0);
  };
  if (random.chance(0.3)) {
    for (double& of_chunk : pattern.remade) of_chunk = share(of_chunk);
  } else {
    double& of_chunk = pattern.remade[random.below(pattern.remade.size())];
    of_chunk = share(of_chunk);
  }
}

/// Returns the stashes without a home, as Instance::remade.
std::vector<bool> remade_by(const ShiftPattern& pattern, const Instance& instance) {
  std::vector<bool> remade(instance.jobs() / 3, false);
  for (int b = 0; b < instance.microbatches; ++b) {
    for (int s = 0; s < instance.stages; ++s) {
      const double share = pattern.remade[index(s / instance.workers)];
      remade[instance.job(0, s, b) / 3] = std::floor((b + 1) * share) > std::floor(b * share);
    }
  }
  return remade;
}

}  // namespace

ShiftPattern random_pattern(const Instance& instance, Random& random, bool homes) {
  const Scale scale = scale_of(instance);
  ShiftPattern pattern =
      random.chance(0.5) ? grid_pattern(instance, random) : timed_pattern(instance, random, scale);
  if (random.chance(0.5)) {
    const int passes = 3 * (instance.stages + instance.workers - 1) / instance.workers;
    const auto spacing = [&] {
      return random.chance(0.5) ? static_cast<double>(random.between(1, passes)) / passes
                                : random.uniform(0.1, 1);
    };
    pattern.group = random.between(2, random.chance(0.5) ? 4 : std::max(4, instance.workers));
    pattern.forward_spacing = spacing();
    pattern.backward_spacing = random.chance(0.5) ? pattern.forward_spacing : spacing();
  }
  pattern.forward_gap = random.uniform(0, 2);
  pattern.backward_gap = random.uniform(0, 1.5);
  pattern.weight_gap = random.uniform(0, 1.2);
  if (random.chance(0.5)) pattern.weight_backlog = random.between(0, 2 * instance.stages);
  pattern.weights_before_early = random.chance(0.5);
  if (random.chance(0.33)) pattern.spare = random.uniform(0, 1);
  if (homes) {
    pattern.remade.assign(index(ceil_div(instance.stages, instance.workers)), 0);
    if (random.chance(0.75)) change_homes(pattern, random);
  }
  return pattern;
}

ShiftPattern serial_pattern(const Instance& instance) {
  ShiftPattern pattern;
  lay_chain(pattern, instance, [](int, int) { return 1; });
  pattern.period = 3 * instance.stages;
  return pattern;
}

void mutate(ShiftPattern& pattern, const Instance& instance, Random& random) {
  const int passes = 3 * (instance.stages + instance.workers - 1) / instance.workers;
  for (int changes = random.between(1, 3); changes > 0; --changes) {
    const double size = 3 * pattern.period / passes * std::pow(10, random.uniform(-2, 0.7));
    const double shift = random.uniform(-size, size);
    const std::size_t stage = random.below(index(instance.stages));
    if (!pattern.remade.empty() && random.chance(0.2)) {
      change_homes(pattern, random);
      continue;
    }
    switch (random.below(10)) {
      case 0:
      case 1:
        pattern.forward[stage] += shift;
        break;
      case 2:
      case 3:
        pattern.backward[stage] += shift;
        break;
      case 4:
      case 5:
        shift_from_forward(pattern, stage, shift, random.chance(0.5));
        break;
      case 6:
      case 7:
        shift_from_backward(pattern, stage, shift);
        break;
      case 8:
        change_distances(pattern, random);
        break;
      default:
        change_rules(pattern, instance, random);
    }
  }
}

PatternScheduler::PatternScheduler(Instance instance)
    : instance_(std::move(instance)), workers_(index(instance_.workers)) {}

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
      const JobId job = instance_.job(pass, stage, (pass == 0 ? forward : backward)[index(stage)]++);
      if (!pass_in_list(w, job, 0, live)) return false;
      list.push_back(job);
    }
  }
  return true;
}

// Lets a job of the list run while stashes take `live` and `more`, and its W if it is a B. False if the limit
// is exceeded.
bool PatternScheduler::pass_in_list(int w, JobId job, double more, double& live) const {
  live += instance_.memory_change(job);
  const bool fits = instance_.fits(w, live + more);
  if (Instance::pass_of(job) == 1) live -= instance_.stash[index(instance_.stage_of(job))];
  return fits;
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
  if (!pattern.remade.empty()) instance_.remade = remade_by(pattern, instance_);
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
    const double more = instance_.memory_change(in_turn);
    const bool fits = more == 0 || instance_.fits(w, worker.live + more);
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
    if (arrival_[job] > now || gap < share * instance_.time_of(job) || time >= earliest) return;
    const double size = instance_.memory_change(job);
    if (size > 0 && !keeps_limit(w, job, size, releasable)) return;
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
    if (!started_[job] && !pass_in_list(w, job, more, live)) return false;
  }
  return instance_.fits(w, live + more);
}

void PatternScheduler::start(int w, double now, JobId job) {
  Worker& worker = workers_[index(w)];
  const double end = now + instance_.time_of(job);
  started_[job] = true;
  ++count_[index(Instance::pass_of(job))][index(instance_.stage_of(job))];
  worker.free_at = worker.look_at = end;
  worker.live += instance_.memory_change(job);
  instance_.for_each_next(job, [&](JobId next, double lag) {
    arrival_[next] = end + lag;
    Worker& reader = workers_[index(instance_.worker_of[index(instance_.stage_of(next))])];
    if (&reader != &worker)
      reader.look_at = std::min(reader.look_at, std::max(arrival_[next], reader.free_at));
  });
}

}  // namespace starpipe::plan
