// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/detached_parts.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan/simulate/fetches.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

/// Runs the schedule's jobs by their expected costs, to find the order in which they start.
class DetachedRun {
 public:
  DetachedRun(const Schedule& schedule, std::span<const StagePart> parts, const Costs& costs, int ahead)
      : schedule_(schedule),
        parts_(parts),
        costs_(costs),
        fetches_(schedule, costs),
        ahead_(ahead),
        workers_(index(schedule.workers())),
        waiting_(schedule.id_count(), 0),
        end_(schedule.id_count(), 0),
        place_(schedule.id_count(), 0),
        position_(schedule.id_count(), not_started) {
    for (int w = 0; w < schedule.workers(); ++w) add_own_jobs(w);
    for (const JobId id : schedule.order()) waiting_[id] = schedule.pred_count(id);
    hold_sources();
  }

  /// Returns, by JobId, the number of jobs that started before the job.
  std::vector<std::int64_t> run() && {
    for (const JobId id : schedule_.order()) {
      if (waiting_[id] == 0) events_.insert({inputs_arrival(id), id, false});
    }
    while (!events_.empty()) {
      const double now = events_.begin()->time;
      std::set<int> touched;
      while (!events_.empty() && events_.begin()->time == now) {
        const auto [time, job, ends] = events_.extract(events_.begin()).value();
        touched.insert(schedule_.compute(job));
        ends ? end(job, now) : make_ready(job);
      }
      for (const int worker : touched) start_next(workers_[index(worker)], now);
    }
    if (std::cmp_not_equal(started_, schedule_.job_count()))
      throw std::logic_error("detached parts: some jobs never start");
    return std::move(position_);
  }

 private:
  static constexpr std::int64_t not_started = -1;

  struct Event {
    double time;
    JobId job;
    bool ends;  // else the job becomes ready
    friend auto operator<=>(const Event&, const Event&) = default;
  };
  struct Worker {
    std::vector<JobId> own;       // the jobs that are not detached, in order
    std::vector<int> forwards;    // by place in `own`: number of forward passes up to it
    std::set<std::size_t> ready;  // places of ready jobs
    std::size_t next = 0;         // no job before this place is left to start
    int passes = 0;               // it may run ahead of at most so many forward passes
    bool is_busy = false;
    std::set<std::pair<std::uint32_t, JobId>> detached;  // ready jobs by turn
  };

  [[nodiscard]] bool is_detached(int stage) const { return parts_[index(stage)].detached; }
  [[nodiscard]] bool is_forward(JobId id) const { return schedule_.job(id).pass == Pass::F; }

  void add_own_jobs(int w) {
    Worker& worker = workers_[index(w)];
    std::map<int, int> stages;  // number of forward passes by micro-batch
    int max = 0;
    for (const JobId id : schedule_.order(w)) {
      const Job job = schedule_.job(id);
      if (is_detached(job.stage)) continue;
      place_[id] = worker.own.size();
      worker.own.push_back(id);
      const int before = worker.forwards.empty() ? 0 : worker.forwards.back();
      worker.forwards.push_back(before + (job.pass == Pass::F ? 1 : 0));
      if (job.pass == Pass::F) max = std::max(max, ++stages[job.microbatch]);
    }
    worker.passes = ahead_ * max;
  }

  // F of a detached source also waits until its first reader has started its F `ahead_` + 1 places earlier.
  void hold_sources() {
    std::map<int, std::vector<int>> sources;  // by reader
    for (int s = 0; s < schedule_.stages(); ++s) {
      if (!is_detached(s) || !schedule_.graph().pred(s).empty()) continue;
      const int reader = schedule_.graph().succ(s).front();
      if (!is_detached(reader)) sources[reader].push_back(s);
    }
    for (const auto& [reader, held] : sources) {
      for (const Worker& worker : workers_) {
        std::vector<JobId> passes;
        for (const JobId id : worker.own) {
          if (schedule_.job(id).stage == reader && is_forward(id)) passes.push_back(id);
        }
        for (std::size_t i = index(ahead_) + 1; i < passes.size(); ++i) {
          for (const int s : held) {
            const JobId source = schedule_.forward(s, schedule_.job(passes[i]).microbatch);
            ++waiting_[source];
            released_by_[passes[i - index(ahead_) - 1]].push_back(source);
          }
        }
      }
    }
  }

  void make_ready(JobId id) {
    Worker& worker = workers_[index(schedule_.compute(id))];
    if (is_detached(schedule_.job(id).stage)) {
      worker.detached.emplace(schedule_.turn(id), id);
    } else {
      worker.ready.insert(place_[id]);
    }
  }

  // Returns the time at which all inputs of `id` are on its worker. Call it when their producers have ended.
  [[nodiscard]] double inputs_arrival(JobId id) const {
    double time = 0;
    fetches_.for_each(id, [&](const Fetch& fetch) {
      const double sent = fetch.kind == Fetch::Kind::weights ? 0 : end_[fetch.producer];
      time = std::max(time, sent + costs_.link(fetch.from, schedule_.compute(id)).time(fetch.bytes));
    });
    return time;
  }

  void wait_for_one_less(JobId id, double now) {
    if (--waiting_[id] == 0) events_.insert({std::max(now, inputs_arrival(id)), id, false});
  }

  void end(JobId id, double now) {
    workers_[index(schedule_.compute(id))].is_busy = false;
    end_[id] = now;
    schedule_.for_each_succ(id, [&](JobId next) { wait_for_one_less(next, now); });
  }

  std::optional<JobId> next_job(Worker& worker) const {
    if (!worker.detached.empty()) return worker.detached.extract(worker.detached.begin()).value().second;
    if (worker.ready.empty()) return std::nullopt;
    const std::vector<JobId>& own = worker.own;
    while (position_[own[worker.next]] != not_started) ++worker.next;
    const std::size_t first = *worker.ready.begin();
    const bool is_ahead = first > worker.next;
    if (is_ahead && ahead_ == 0) return std::nullopt;
    if (worker.forwards[first] - worker.forwards[worker.next] > worker.passes) return std::nullopt;
    worker.ready.erase(worker.ready.begin());
    return own[first];
  }

  void start_next(Worker& worker, double now) {
    if (worker.is_busy) return;
    const std::optional<JobId> id = next_job(worker);
    if (!id) return;
    worker.is_busy = true;
    position_[*id] = started_++;
    const Job job = schedule_.job(*id);
    events_.insert({now + costs_.duration(job).of(job.pass), *id, true});
    if (const auto held = released_by_.find(*id); held != released_by_.end()) {
      for (const JobId source : held->second) wait_for_one_less(source, now);
    }
  }

  const Schedule& schedule_;
  std::span<const StagePart> parts_;
  const Costs& costs_;
  Fetches fetches_;
  int ahead_;
  std::vector<Worker> workers_;
  std::vector<int> waiting_;        // by JobId: jobs that must end, or start (released_by_), before it
  std::vector<double> end_;         // by JobId
  std::vector<std::size_t> place_;  // by JobId: in Worker::own
  std::vector<std::int64_t> position_;
  std::int64_t started_ = 0;
  std::map<JobId, std::vector<JobId>> released_by_;  // by F of a reader: sources that its start releases
  std::set<Event> events_;
};

}  // namespace

Schedule with_detached_where_free(const Schedule& schedule, std::span<const StagePart> parts,
                                  const Costs& costs, int ahead) {
  if (schedule.copies())
    throw InputError(
        fmt::format("{}: homes host and disk do not apply with shards of the vocabulary", schedule.name()));
  std::optional<Schedule> best;
  double shortest = 0;
  ahead = std::min(ahead, schedule.microbatches());
  // Running further ahead may delay others: a worker may start a long job just before a detached job is ready
  // that others wait for.
  for (int min = 0;; min = std::min(ahead, std::max(1, 2 * min))) {
    Schedule found = schedule.ordered_by(DetachedRun(schedule, parts, costs, min).run());
    const double makespan = simulated_makespan(found, costs);
    if (!best || makespan < shortest) {
      best = std::move(found);
      shortest = makespan;
    }
    if (min == ahead) return *std::move(best);
  }
}

}  // namespace starpipe::plan
