// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/idle_causes.hpp"

#include <algorithm>
#include <limits>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// A job that is ready from some time on.
struct ReadyJob {
  double time = std::numeric_limits<double>::infinity();
  JobId job = 0;
};

// Appends the part, or makes the last one longer if it continues.
void append(const IdlePart& part, std::vector<IdlePart>& parts) {
  if (!parts.empty()) {
    IdlePart& last = parts.back();
    if (last.worker == part.worker && last.end == part.start && last.cause == part.cause &&
        last.next == part.next && last.producer == part.producer) {
      last.end = part.end;
      return;
    }
  }
  parts.push_back(part);
}

// The idle parts of one worker.
class WorkerIdle {
 public:
  WorkerIdle(const RecordedStep& step, int worker, std::vector<IdlePart>& parts)
      : step_(step), worker_(worker), parts_(&parts), row_(step.timeline.order[index(worker)]) {
    // From the last job backwards: the first job to become ready of those behind each position.
    later_.resize(row_.size());
    for (std::size_t i = row_.size(); i-- > 1;) {
      const double ready = input_wait(step_, row_[i]).startable;
      later_[i - 1] = ready <= later_[i].time ? ReadyJob{ready, row_[i]} : later_[i];
    }
  }

  // `begin`, `end`: of the step.
  void find(double begin, double end) {
    double idle_from = begin;
    for (std::size_t i = 0; i < row_.size(); ++i) {
      const Span& span = step_.timeline.spans[row_[i]];
      if (span.start > idle_from) explain(i, idle_from, span.start);
      idle_from = std::max(idle_from, span.end);
    }
    if (end > idle_from)
      append({.worker = worker_, .start = idle_from, .end = end, .cause = IdleCause::drain}, *parts_);
  }

 private:
  // Explains the time from `start` to `end`, before the job at `position`.
  void explain(std::size_t position, double start, double end) {
    const InputWait wait = input_wait(step_, row_[position]);
    std::array<double, 7> times = {wait.produced,
                                   wait.transfer_from,
                                   wait.transfer_to,
                                   wait.startable,
                                   wait.input.copied,
                                   later_[position].time,
                                   end};
    std::ranges::sort(times);
    for (const double time : times) {
      const double to = std::min(time, end);
      if (to <= start) continue;
      IdlePart part = cause_at(start, position, wait);
      part.start = start;
      part.end = to;
      append(part, *parts_);
      start = to;
    }
  }

  [[nodiscard]] IdlePart cause_at(double time, std::size_t position, const InputWait& wait) const {
    IdlePart part = {.worker = worker_, .cause = IdleCause::runtime, .next = row_[position]};
    const bool under_way = time >= wait.transfer_from && time < wait.transfer_to;
    if (time >= wait.startable) {
      if (under_way && !step_.prefetch) set_transfer(part, wait);
      return part;
    }
    const bool unproduced = wait.input.producer && time < wait.produced;
    if (unproduced) part.producer = wait.input.producer;
    if (time >= later_[position].time) {
      part.cause = IdleCause::order;
      part.held_back = later_[position].job;
    } else if (unproduced) {
      part.cause = position == 0 ? IdleCause::fill : IdleCause::producer;
    } else if (under_way) {
      set_transfer(part, wait);
    } else if (time < wait.input.copied) {
      part.cause = IdleCause::copy;
      part.producer = wait.input.copy;
    }
    return part;
  }

  static void set_transfer(IdlePart& part, const InputWait& wait) {
    part.cause = IdleCause::transfer;
    part.producer = wait.input.producer;
    part.from = *wait.input.from;
  }

  const RecordedStep& step_;
  int worker_;
  std::vector<IdlePart>* parts_;
  const std::vector<JobId>& row_;
  std::vector<ReadyJob> later_;  // by position in row_: the first to be ready of all jobs behind it
};

}  // namespace

std::string_view to_string(IdleCause cause) { return idle_cause_words[index(cause)]; }

namespace {

// Follows waiting workers to the job that all of them wait for.
class Chains {
 public:
  Chains(std::span<const IdlePart> parts, const RecordedStep& step)
      : step_(step), pieces_(index(step.as_run.workers())), now_(pieces_.size(), 0) {
    for (std::size_t w = 0; w < pieces_.size(); ++w) {
      for (const JobId id : step.timeline.order[w]) {
        add(w, {.start = step.timeline.spans[id].start, .end = step.timeline.spans[id].end, .job = id});
      }
    }
    for (const IdlePart& part : parts) {
      add(index(part.worker), {.start = part.start, .end = part.end, .idle = &part});
    }
    for (std::vector<Piece>& pieces : pieces_) std::ranges::sort(pieces, {}, &Piece::start);
    std::ranges::sort(times_);
    times_.erase(std::unique(times_.begin(), times_.end()), times_.end());
  }

  std::vector<ProducerWait> waits() {
    std::map<Kernel, double> sums;
    for_each_wait([&](const IdlePart& part, std::optional<JobId> running) {
      if (running && part.cause != IdleCause::fill)
        sums[kernel_of(step_.as_run, *running)] += part.end - part.start;
    });
    return largest_first<ProducerWait>(sums);
  }

  // Returns the parts. A part that waits for R gets the cause recomputation.
  std::vector<IdlePart> with_recomputation() {
    std::vector<std::vector<IdlePart>> by_worker(pieces_.size());
    for_each_wait([&](IdlePart part, std::optional<JobId> running) {
      if (const std::optional<JobId> remade = delaying(running, part.start)) {
        part.cause = IdleCause::recomputation;
        part.producer = remade;
      }
      append(part, by_worker[index(part.worker)]);
    });
    std::vector<IdlePart> all;
    for (const std::vector<IdlePart>& parts : by_worker) all.insert(all.end(), parts.begin(), parts.end());
    return all;
  }

 private:
  // A job, or an idle part.
  struct Piece {
    double start = 0;
    double end = 0;
    JobId job = 0;
    const IdlePart* idle = nullptr;
  };

  void add(std::size_t worker, const Piece& piece) {
    if (piece.end <= piece.start) return;
    pieces_[worker].push_back(piece);
    times_.push_back(piece.start);
    times_.push_back(piece.end);
  }

  // Returns the piece that the worker runs now; null if all its pieces are over.
  [[nodiscard]] const Piece* piece(std::size_t worker) const {
    return now_[worker] < pieces_[worker].size() ? &pieces_[worker][now_[worker]] : nullptr;
  }

  // Under the cause order the worker had something else to run. It waited all the same, for the job that its
  // next one reads.
  static bool waits_for_job(const IdlePart& idle) {
    return idle.producer && idle.cause != IdleCause::transfer && idle.cause != IdleCause::copy;
  }

  // Returns the job that runs where the chain from `worker` ends, or nullopt if none runs there.
  [[nodiscard]] std::optional<JobId> running(std::size_t worker) const {
    // Where clocks differ, workers may seem to wait for each other. So the chain has at most all of them.
    for (std::size_t hops = 0; hops < pieces_.size(); ++hops) {
      const Piece* now = piece(worker);
      if (now == nullptr) return std::nullopt;
      if (now->idle == nullptr) return now->job;
      if (!waits_for_job(*now->idle)) return std::nullopt;
      worker = index(step_.as_run.compute(*now->idle->producer));
    }
    return std::nullopt;
  }

  // Returns the R that keeps the chain waiting at `time`, where `job` runs at the chain's end; nullopt if it
  // is no R. While the B of an R waits for another worker anyway, this R is in a bubble: the chain goes on to
  // that worker.
  [[nodiscard]] std::optional<JobId> delaying(std::optional<JobId> job, double time) const {
    const Schedule& schedule = step_.as_run;
    for (std::size_t hops = 0; hops < pieces_.size(); ++hops) {
      if (!job || schedule.job(*job).pass != Pass::R) return std::nullopt;
      const auto [stage, microbatch, pass] = schedule.job(*job);
      std::optional<JobId> missing;
      schedule.for_each_pred(schedule.backward(stage, microbatch), [&](JobId other) {
        if (other != *job && step_.timeline.spans[other].end > time) missing = other;
      });
      if (!missing) return job;
      job = running(index(schedule.compute(*missing)));
    }
    return std::nullopt;
  }

  // Calls f(part, job) for all idle time, in the order of time, divided where a chain may change: the job
  // that runs at its end; nullopt if the worker waits for no job, or none runs there.
  template <class Function>
  void for_each_wait(Function f) {
    for (std::size_t i = 0; i + 1 < times_.size(); ++i) {
      for (std::size_t w = 0; w < pieces_.size(); ++w) {
        while (now_[w] < pieces_[w].size() && pieces_[w][now_[w]].end <= times_[i]) ++now_[w];
      }
      for (std::size_t w = 0; w < pieces_.size(); ++w) {
        const Piece* now = piece(w);
        if (now == nullptr || now->idle == nullptr) continue;
        IdlePart part = *now->idle;
        part.start = times_[i];
        part.end = times_[i + 1];
        f(part, waits_for_job(part) ? running(w) : std::nullopt);
      }
    }
  }

  const RecordedStep& step_;
  std::vector<std::vector<Piece>> pieces_;  // by worker
  std::vector<std::size_t> now_;            // by worker: index of the piece at the time that is looked at
  std::vector<double> times_;               // at which some piece begins or ends
};

}  // namespace

std::vector<IdlePart> idle_parts(const RecordedStep& step) {
  const double begin = first_start(step.timeline);
  double end = begin;
  for (const Span& span : step.timeline.spans) end = std::max(end, span.end);
  std::vector<IdlePart> parts;
  for (int worker = 0; worker < step.as_run.workers(); ++worker)
    WorkerIdle(step, worker, parts).find(begin, end);
  return step.as_run.recomputes() ? Chains(parts, step).with_recomputation() : parts;
}

std::vector<std::array<double, idle_cause_count>> idle_seconds(std::span<const IdlePart> parts, int workers) {
  std::vector<std::array<double, idle_cause_count>> seconds(index(workers));
  for (const IdlePart& part : parts) seconds[index(part.worker)][index(part.cause)] += part.end - part.start;
  return seconds;
}

std::vector<ProducerWait> producer_waits(std::span<const IdlePart> parts, const RecordedStep& step) {
  return Chains(parts, step).waits();
}

std::vector<LinkWait> link_waits(std::span<const IdlePart> parts) {
  std::map<WorkerPair, double> sums;
  for (const IdlePart& part : parts) {
    if (part.cause == IdleCause::transfer) sums[{part.from, part.worker}] += part.end - part.start;
  }
  return largest_first<LinkWait>(sums);
}

namespace {

// Returns the wait of one job, without the other job of its pair.
InputWait wait_of_job(const RecordedStep& step, JobId id) {
  InputWait wait;
  wait.input = last_input(step.as_run, step.timeline, id);
  wait.produced = wait.input.produced;
  const double ready = step.timeline.ready[id];
  const double sent = std::max(step.submitted[id], wait.produced);
  if (!step.prefetch) {
    wait.startable = std::max(sent, wait.input.own_produced);
    wait.transfer_to = step.timeline.spans[id].start;
    wait.transfer_from = wait.transfer_to - step.transfer[id];
    return wait;
  }
  wait.startable = ready;
  wait.transfer_from = std::min(sent, ready);
  // The comparison keeps rounding out: a transfer that took until the job was ready ends at that very time.
  const double time = wait.input.from ? step.transfer[id] : 0;
  wait.transfer_to =
      time >= ready - wait.transfer_from && wait.input.from ? ready : wait.transfer_from + time;
  return wait;
}

}  // namespace

InputWait input_wait(const RecordedStep& step, JobId id) {
  InputWait wait = wait_of_job(step, id);
  const JobId last = step.as_run.last_of_pair(id);
  if (last == id) return wait;
  const InputWait of_partner = wait_of_job(step, last);
  return of_partner.startable > wait.startable ? of_partner : wait;
}

}  // namespace starpipe::plan
