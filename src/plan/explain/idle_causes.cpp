// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/idle_causes.hpp"

#include <algorithm>
#include <limits>

#include "plan/explain/input_wait.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

// A job that is ready from some time on.
struct ReadyJob {
  double time = std::numeric_limits<double>::infinity();
  JobId job = 0;
};

// The idle parts of one worker.
class WorkerIdle {
 public:
  WorkerIdle(const RecordedStep& step, int worker, std::vector<IdlePart>& parts)
      : step_(step), worker_(worker), parts_(&parts), row_(step.timeline.order[index(worker)]) {
    // From the last job backwards: the first job to become ready of those behind each position.
    later_.resize(row_.size());
    for (std::size_t i = row_.size(); i-- > 1;) {
      const double ready = detail::input_wait(step_, row_[i]).startable;
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
    if (end > idle_from) add({.worker = worker_, .start = idle_from, .end = end, .cause = IdleCause::drain});
  }

 private:
  // Explains the time from `start` to `end`, before the job at `position`.
  void explain(std::size_t position, double start, double end) {
    const detail::InputWait wait = detail::input_wait(step_, row_[position]);
    std::array<double, 6> times = {wait.produced,  wait.transfer_from,    wait.transfer_to,
                                   wait.startable, later_[position].time, end};
    std::ranges::sort(times);
    for (const double time : times) {
      const double to = std::min(time, end);
      if (to <= start) continue;
      IdlePart part = cause_at(start, position, wait);
      part.start = start;
      part.end = to;
      add(part);
      start = to;
    }
  }

  [[nodiscard]] IdlePart cause_at(double time, std::size_t position, const detail::InputWait& wait) const {
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
    }
    return part;
  }

  static void set_transfer(IdlePart& part, const detail::InputWait& wait) {
    part.cause = IdleCause::transfer;
    part.producer = wait.input.producer;
    part.from = *wait.input.from;
  }

  void add(const IdlePart& part) {
    if (!parts_->empty()) {
      IdlePart& last = parts_->back();
      const bool continues = last.worker == part.worker && last.end == part.start &&
                             last.cause == part.cause && last.next == part.next &&
                             last.producer == part.producer;
      if (continues) {
        last.end = part.end;
        return;
      }
    }
    parts_->push_back(part);
  }

  const RecordedStep& step_;
  int worker_;
  std::vector<IdlePart>* parts_;
  const std::vector<JobId>& row_;
  std::vector<ReadyJob> later_;  // by position in row_: the first to be ready of all jobs behind it
};

}  // namespace

std::string_view to_string(IdleCause cause) { return idle_cause_words[index(cause)]; }

std::vector<IdlePart> idle_parts(const RecordedStep& step) {
  const double begin = first_start(step.timeline);
  double end = begin;
  for (const Span& span : step.timeline.spans) end = std::max(end, span.end);
  std::vector<IdlePart> parts;
  for (int worker = 0; worker < step.as_run.workers(); ++worker)
    WorkerIdle(step, worker, parts).find(begin, end);
  return parts;
}

}  // namespace starpipe::plan
