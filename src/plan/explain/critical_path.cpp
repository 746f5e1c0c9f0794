// SPDX-License-Identifier: Apache-2.0
#include "plan/explain/critical_path.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace starpipe::plan {
namespace {

// Walks from the end of the step to its begin.
class BackwardWalk {
 public:
  explicit BackwardWalk(const RecordedStep& step) : step_(step), begin_(first_start(step.timeline)) {}

  std::vector<PathPart> run() {
    std::optional<JobId> at = last_job();
    if (at) time_ = step_.timeline.spans[*at].end;
    while (at) {
      add(step_.timeline.spans[*at].start, {.kind = PathPart::Kind::compute, .job = *at});
      at = before(*at);
    }
    std::ranges::reverse(parts_);
    return std::move(parts_);
  }

 private:
  [[nodiscard]] std::optional<JobId> last_job() const {
    std::optional<JobId> last;
    for (const auto& row : step_.timeline.order) {
      for (const JobId id : row) {
        if (!last || step_.timeline.spans[id].end > step_.timeline.spans[*last].end) last = id;
      }
    }
    return last;
  }

  // Adds what lies between the start of `id` and the end of the job for which it waited last. Returns that
  // job, or nullopt at the begin of the step.
  std::optional<JobId> before(JobId id) {
    if (is_copy(step_.as_run.job(id).pass)) return before_copy(id);
    const InputWait wait = input_wait(step_, id);
    const PathPart runtime = {.kind = PathPart::Kind::runtime, .job = id};
    const PathPart transfer = {
        .kind = PathPart::Kind::transfer, .job = id, .from = wait.input.from.value_or(-1)};
    const std::optional<JobId> previous = previous_on_worker(id);
    const double free_since = previous ? step_.timeline.spans[*previous].end : begin_;
    // Without prefetch the worker itself waits for the transfer, whatever came before.
    if (!step_.prefetch) add(wait.transfer_from, transfer);
    if (wait.input.copy && wait.input.copied > std::max(free_since, wait.transfer_to)) {
      add(wait.input.copied, runtime);
      return wait.input.copy;
    }
    const double arrived = step_.prefetch ? wait.transfer_to : wait.produced;
    if (wait.input.from && (!previous || arrived > free_since)) {
      add(arrived, runtime);
      if (step_.prefetch) add(wait.transfer_from, transfer);
      add(wait.input.producer ? wait.produced : begin_, runtime);
      if (!wait.input.producer) return std::nullopt;
      return step_.as_run.last_of_pair(*wait.input.producer);
    }
    add(free_since, runtime);
    return previous;
  }

  // Nothing is sent to a copy: it waits for ends of jobs and copies alone.
  JobId before_copy(JobId id) {
    std::optional<JobId> last;
    step_.as_run.for_each_pred(id, [&](JobId p) {
      if (!last || step_.timeline.spans[p].end > step_.timeline.spans[*last].end) last = p;
    });
    add(step_.timeline.spans[*last].end, {.kind = PathPart::Kind::runtime, .job = id});
    return *last;
  }

  [[nodiscard]] std::optional<JobId> previous_on_worker(JobId id) const {
    const std::uint32_t position = step_.as_run.position(id);
    if (position == 0) return std::nullopt;
    return step_.as_run.order(step_.as_run.compute(id))[position - 1];
  }

  // Adds a part that begins at `start` and ends where the last one begins. Clocks of ranks differ by
  // microseconds, so `start` may lie behind that; then the part has no length.
  void add(double start, PathPart part) {
    part.start = std::clamp(start, begin_, time_);
    part.end = time_;
    time_ = part.start;
    if (part.end > part.start) parts_.push_back(part);
  }

  const RecordedStep& step_;
  double begin_;
  double time_ = 0;
  std::vector<PathPart> parts_;
};

}  // namespace

std::vector<PathPart> critical_path(const RecordedStep& step) { return BackwardWalk(step).run(); }

PathSummary summary(std::span<const PathPart> path, const Schedule& as_run) {
  std::map<Kernel, PathSummary::Jobs> jobs;
  std::map<WorkerPair, double> links;
  PathSummary sums;
  for (const PathPart& part : path) {
    const double seconds = part.end - part.start;
    switch (part.kind) {
      case PathPart::Kind::compute: {
        const Kernel kernel = kernel_of(as_run, part.job);
        auto& kind = jobs[kernel];
        kind = {kernel, kind.count + 1, kind.seconds + seconds};
        break;
      }
      case PathPart::Kind::transfer:
        links[{part.from, as_run.compute(part.job)}] += seconds;
        break;
      case PathPart::Kind::runtime:
        sums.runtime += seconds;
        break;
    }
  }
  for (const auto& [kernel, kind] : jobs) sums.jobs.push_back(kind);
  std::ranges::stable_sort(sums.jobs, std::greater<>{}, &PathSummary::Jobs::seconds);
  sums.links = largest_first<LinkWait>(links);
  return sums;
}

}  // namespace starpipe::plan
