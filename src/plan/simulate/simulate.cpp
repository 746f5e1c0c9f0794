// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/simulate.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <queue>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "plan/simulate/copies_in_flight.hpp"
#include "plan/simulate/fetches.hpp"
#include "plan/simulate/gradient_sums.hpp"
#include "plan/simulate/shared_transfers.hpp"
#include "plan/simulate/transfers_in_flight.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/worker_queue.hpp"

namespace starpipe::plan {
namespace {

// Refuses a pair that ends before the longer of its jobs, or after one job has followed the other.
void check_pairs(const Schedule& schedule, const Costs& costs) {
  if (!costs.prefetch) throw InputError("overlap: pairs need transfers that overlap compute (prefetch)");
  constexpr double rounding = 1e-9;
  for (const JobId id : schedule.order()) {
    const JobId last = schedule.last_of_pair(id);
    if (last == id) continue;
    const double f = costs.duration(schedule.job(id)).F;
    const double backward = costs.duration(schedule.job(last)).of(schedule.job(last).pass);
    const double time = costs.pair_time(schedule.job(id), schedule.job(last));
    if (time >= std::max(f, backward) * (1 - rounding) && time <= (f + backward) * (1 + rounding)) continue;
    throw InputError(fmt::format(
        "overlap: {} and {} at once take {}, but alone {} and {}; a pair takes at least the longer "
        "of the two, and at most their sum",
        to_string(schedule.job(id)), to_string(schedule.job(last)), time, f, backward));
  }
}

void check_costs(const Schedule& schedule, const Costs& costs) {
  if (costs.slices != 1 && costs.slices != schedule.slices())
    throw InputError(fmt::format("costs of {} slices, the schedule has {}", costs.slices, schedule.slices()));
  const auto stages = index(schedule.stages()) * index(costs.slices);
  if (costs.durations.size() != 1 && costs.durations.size() != stages) {
    throw InputError(
        fmt::format("durations for {} stages, the schedule has {}", costs.durations.size(), stages));
  }
  if (costs.sizes.size() != 1 && costs.sizes.size() != stages) {
    throw InputError(fmt::format("sizes of {} stages, the schedule has {}", costs.sizes.size(), stages));
  }
  if (schedule.has_pairs()) check_pairs(schedule, costs);
  if (costs.messages_pass_hosts && !costs.host)
    throw InputError("messages_pass_hosts: needs the links to the hosts (host_link)");
  for (std::size_t s = 0; s < costs.durations.size(); ++s) {
    const Durations& d = costs.durations[s];
    if (!finite_amounts.contains(d.F) || !finite_amounts.contains(d.B) || !finite_amounts.contains(d.W)) {
      throw InputError(fmt::format("durations of stage {} must be {} (F={}, B={}, W={})", s,
                                   finite_amounts.text(), d.F, d.B, d.W));
    }
  }
}

void check_times(const Schedule& schedule, const std::vector<double>& times, std::string_view what) {
  if (times.empty()) return;
  if (times.size() != schedule.id_count()) {
    throw InputError(fmt::format("{} of {} jobs, the schedule has {} job numbers", what, times.size(),
                                 schedule.id_count()));
  }
  for (const JobId id : schedule.order()) {
    if (finite_amounts.contains(times[id])) continue;
    throw InputError(fmt::format("{} of {} must be {}, got {}", what, to_string(schedule.job(id)),
                                 finite_amounts.text(), times[id]));
  }
}

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs, const JobTimes& times)
      : schedule_(schedule),
        costs_(costs),
        times_(times),
        fetches_(schedule, costs),
        transfers_cost_(costs.links.takes_time() || !times.transfer.empty()),
        spans_(schedule.id_count()),
        waiting_(schedule.id_count(), 0),
        ready_at_(schedule.id_count(), 0),
        running_(index(schedule.workers())) {
    queues_.reserve(running_.size());
    for (int w = 0; w < schedule.workers(); ++w) queues_.emplace_back(schedule, w);
    const bool simulates_transfers = costs.transfers_wait() && times.transfer.empty();
    const bool simulates_copies = schedule.copies() && times.duration.empty();
    if (simulates_copies || (simulates_transfers && costs.has_slow_hosts()))
      copies_ = std::make_unique<CopiesInFlight>(schedule, costs);
    if (!simulates_transfers) return;
    shared_ = std::make_unique<SharedTransfers>(schedule, costs, fetches_, copies_.get());
    if (!costs.prefetch) return;
    sums_.emplace(schedule, costs, [this](int worker, double time) {
      const std::optional<JobId> present = running_[index(worker)];
      return present ? std::max(time, leaves_at(*present)) : time;
    });
    if (!sums_->any()) sums_.reset();
  }

  void run() {
    if (shared_ && costs_.prefetch) shared_->send_weights(complete_);
    for (const JobId id : schedule_.order()) {
      waiting_[id] = schedule_.pred_count(id);
      if (waiting_[id] == 0 && has_inputs(id)) events_.push({inputs_arrival(id), id, Event::Kind::ready});
    }
    if (shared_) {
      complete_.clear();
      begin_transfers(0);
    }
    for (double now = next_time(); now < TransfersInFlight::never; now = next_time()) {
      handle_events(now);
      if (shared_) {
        handle_arrivals(now);
        handle_events(now);  // ends of jobs without length that waited for an arrival, before any job starts
      }
      if (copies_) handle_passed_links(now);
      for (const int worker : touched_) start_next(worker, now);
      touched_.clear();
      if (shared_) begin_transfers(now);
      begin_copies(now);
    }
  }

  /// See the members of Timeline.
  struct Run {
    std::vector<Span> spans;
    std::vector<double> ready;
    std::vector<std::vector<JobId>> order;
  };
  /// Gives away what was found.
  Run take() && {
    std::vector<std::vector<JobId>> order(running_.size());
    for (const JobId id : started_) order[index(schedule_.compute(id))].push_back(id);
    return {std::move(spans_), std::move(ready_at_), std::move(order)};
  }
  [[nodiscard]] double makespan() const {
    double first = spans_[started_.front()].start;
    double last = first;
    for (const JobId id : started_) {
      first = std::min(first, spans_[id].start);
      last = std::max(last, spans_[id].end);
    }
    return last - first;
  }
  /// Returns the jobs in the order in which they started.
  [[nodiscard]] const std::vector<JobId>& started() const { return started_; }
  /// Returns the time at which the last sum of gradients was on its last worker, where they delay transfers
  /// of jobs; otherwise nullopt.
  [[nodiscard]] std::optional<double> last_sum() const {
    return sums_ ? std::optional(sums_->last()) : std::nullopt;
  }

 private:
  struct Event {
    enum class Kind : std::uint8_t { ready, end };
    double time;
    JobId job;
    Kind kind;
    friend auto operator<=>(const Event&, const Event&) = default;
  };

  // Returns TransfersInFlight::never at the end.
  [[nodiscard]] double next_time() const {
    double time = TransfersInFlight::never;
    if (!events_.empty()) time = events_.top().time;
    if (shared_) time = std::min(time, shared_->next());
    if (sums_) time = std::min(time, sums_->next());
    if (copies_) time = std::min(time, copies_->next());
    return time;
  }

  // Messages of jobs leave before sums of gradients.
  void begin_transfers(double now) {
    shared_->begin(now);
    if (!sums_) return;
    sums_->send_until(now, [&](int from, int to, std::uint64_t bytes, std::uint32_t number) {
      shared_->begin_other(now, from, to, bytes, 2 * number);
    });
  }

  [[nodiscard]] double transfer_time(const Fetch& fetch, JobId reader) const {
    return costs_.link(fetch.from, schedule_.compute(reader)).time(fetch.bytes);
  }

  // With prefetch, where transfers may delay each other: true if the inputs of `id` have arrived. Otherwise
  // the time of their arrival is known when their producers end.
  [[nodiscard]] bool has_inputs(JobId id) const {
    return !shared_ || !costs_.prefetch || shared_->is_complete(id);
  }

  // Returns the time at which the results of a job leave, once it is known.
  [[nodiscard]] double leaves_at(JobId producer) const {
    return spans_[schedule_.last_of_pair(producer)].end;
  }

  // Returns the last end of a producer on another worker (0 before it has ended), or nullopt without such a
  // producer.
  [[nodiscard]] std::optional<double> last_sent(JobId id) const {
    std::optional<double> last;
    for_each_producer(schedule_, id, [&](JobId producer) {
      if (schedule_.compute(producer) == schedule_.compute(id) || is_copy_of_stash(producer)) return;
      last = std::max(last.value_or(0), leaves_at(producer));
    });
    return last;
  }

  // With prefetch, where transfers do not delay each other: returns the time at which all inputs of `id` are
  // on its worker. Their producers must have ended. Otherwise returns 0.
  [[nodiscard]] double inputs_arrival(JobId id) const {
    if (!costs_.prefetch || !transfers_cost_ || shared_ || is_copy_of_stash(id)) return 0;
    if (!times_.transfer.empty()) {
      const std::optional<double> sent = last_sent(id);
      return sent || fetches_.any_of_weights(id) ? sent.value_or(0) + times_.transfer[id] : 0;
    }
    double time = 0;
    fetches_.for_each(id, [&](const Fetch& fetch) {
      const double sent = fetch.kind == Fetch::Kind::weights ? 0 : leaves_at(fetch.producer);
      time = std::max(time, sent + transfer_time(fetch, id));
    });
    return time;
  }

  // Returns how long the worker of `id` waits for the inputs, if it asks for them only now.
  double fetch_time(JobId id) {
    if (!times_.transfer.empty())
      return fetches_.any_of_weights(id) || last_sent(id) ? times_.transfer[id] : 0;
    double time = 0;
    fetches_.for_each(id, [&](const Fetch& fetch) {
      const std::optional<std::uint64_t> copy = fetches_.copy(fetch, schedule_.compute(id));
      if (copy && !fetched_.insert(*copy).second) return;
      time += transfer_time(fetch, id);
    });
    return time;
  }

  void handle_events(double now) {
    while (!events_.empty() && events_.top().time == now) {
      const Event event = events_.top();
      events_.pop();  // before `handle`, which pushes
      handle(event);
    }
  }

  [[nodiscard]] bool is_copy_of_stash(JobId id) const {
    return schedule_.copies() && is_copy(schedule_.job(id).pass);
  }

  void begin_copy(JobId id, double now) {
    ready_at_[id] = now;
    spans_[id].start = now;
    const bool is_timed = !times_.duration.empty();
    if (!is_timed && !schedule_.peer(id)) {
      if (costs_.has_slow_hosts()) return starting_copies_.push_back(id);
      return copies_->begin(now, id);
    }
    if (!is_timed && shared_ && !costs_.peer) {
      const auto [from, to] = schedule_.ends(id);
      shared_->begin_other(now, from, to, costs_.size(schedule_.job(id).stage).stash, 2 * id + 1);
      return;
    }
    spans_[id].end = now + (is_timed ? times_.duration[id] : costs_.time(schedule_, id));
    events_.push({spans_[id].end, id, Event::Kind::end});
  }

  // A message and a copy that a job's end allows ask for the host's link in this order, as in StarPU.
  void begin_copies(double now) {
    for (const JobId id : starting_copies_) copies_->begin(now, id);
    starting_copies_.clear();
  }

  // Ends copies of stashes, and continues the way of messages, that have passed the link of a home.
  void handle_passed_links(double now) {
    ended_copies_.clear();
    passed_hosts_.clear();
    copies_->advance(now, ended_copies_, passed_hosts_);
    for (const JobId id : ended_copies_) end_copy(id, now);
    if (passed_hosts_.empty()) return;
    others_.clear();
    shared_->passed_hosts(now, passed_hosts_, complete_, others_);
    handle_arrived(now);
  }

  void end_copy(JobId id, double now) {
    spans_[id].end = now;
    make_successors_ready(id, now);
  }

  void handle(const Event& event) {
    if (is_copy_of_stash(event.job)) return make_successors_ready(event.job, event.time);
    const int worker = schedule_.compute(event.job);
    touched_.push_back(worker);
    auto& queue = queues_[index(worker)];
    if (event.kind == Event::Kind::ready) {
      ready_at_[event.job] = event.time;
      queue.push(event.job);
      return;
    }
    queue.finish(event.job);
    running_[index(worker)].reset();
    if (schedule_.last_of_pair(event.job) != event.job) return;
    const JobId first = schedule_.first_of_pair(event.job);
    if (first != event.job) release_results(first, event.time);
    release_results(event.job, event.time);
  }

  void release_results(JobId id, double now) {
    if (sums_) sums_->job_ended(id, now);
    if (shared_ && costs_.prefetch) {
      shared_->send_results(id, complete_);
      make_complete_ready(now);
    }
    make_successors_ready(id, now);
  }

  void make_successors_ready(JobId ended, double now) {
    schedule_.for_each_succ(ended, [&](JobId next) {
      if (--waiting_[next] > 0 || !has_inputs(next)) return;
      const double time = inputs_arrival(next);
      if (time > now) {
        events_.push({time, next, Event::Kind::ready});
        return;
      }
      make_ready(next, now);
    });
  }

  void make_ready(JobId id, double now) {
    if (is_copy_of_stash(id)) return begin_copy(id, now);
    ready_at_[id] = now;
    const int worker = schedule_.compute(id);
    queues_[index(worker)].push(id);
    touched_.push_back(worker);
  }

  // Makes the jobs ready whose inputs from other workers have just arrived, unless they wait for another job.
  void make_complete_ready(double now) {
    for (const JobId id : complete_) {
      if (waiting_[id] == 0) make_ready(id, now);
    }
    complete_.clear();
  }

  void handle_arrivals(double now) {
    others_.clear();
    shared_->advance(now, complete_, others_);
    handle_arrived(now);
  }

  // Handles what is in `complete_` and `others_`.
  void handle_arrived(double now) {
    for (const std::uint32_t number : others_) {
      if (number % 2 == 0) {
        sums_->arrived(number / 2, now);
      } else {
        end_copy(number / 2, now);
      }
    }
    if (costs_.prefetch) return make_complete_ready(now);
    for (const JobId id : complete_) {
      if (!shared_->fetch_next(id)) begin(id, now);
    }
    complete_.clear();
  }

  void start_next(int worker, double now) {
    const auto w = index(worker);
    if (running_[w]) return;
    const std::optional<JobId> id = queues_[w].pop();
    if (!id) return;
    running_[w] = id;
    started_.push_back(*id);
    if (costs_.prefetch || !transfers_cost_) return begin(*id, now);
    if (!shared_) return begin(*id, now + fetch_time(*id));
    if (!shared_->fetch_next(*id)) begin(*id, now);
  }

  [[nodiscard]] double duration_of(JobId id) const {
    return times_.duration.empty() ? costs_.time(schedule_, id) : times_.duration[id];
  }

  void begin(JobId id, double start) {
    if (!costs_.prefetch) ready_at_[id] = start;
    const double duration = duration_of(id);
    spans_[id] = {start, start + duration};
    const JobId last = schedule_.last_of_pair(id);
    if (last != id) spans_[last] = {spans_[id].end, spans_[id].end + duration_of(last)};
    events_.push({spans_[id].end, id, Event::Kind::end});
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const JobTimes& times_;
  Fetches fetches_;
  bool transfers_cost_;
  std::unique_ptr<CopiesInFlight> copies_;   // of stashes without given durations, or messages pass hosts
  std::unique_ptr<SharedTransfers> shared_;  // where transfers may delay each other
  std::optional<GradientSums> sums_;         // then, with prefetch, if there are any
  std::vector<Span> spans_;
  std::vector<JobId> started_;
  std::vector<int> waiting_;                   // number of inputs still missing, by JobId
  std::vector<double> ready_at_;               // by JobId: when it became ready
  std::vector<std::optional<JobId>> running_;  // by worker
  std::vector<WorkerQueue> queues_;
  std::vector<int> touched_;            // workers that may start a job now
  std::vector<JobId> complete_;         // see SharedTransfers
  std::vector<std::uint32_t> others_;   // see `begin_transfers` and `begin_copy`
  std::vector<JobId> starting_copies_;  // see `begin_copies`
  std::vector<JobId> ended_copies_;
  std::vector<std::uint32_t> passed_hosts_;
  std::unordered_set<std::uint64_t> fetched_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

Simulation simulated(const Schedule& schedule, const Costs& costs, const JobTimes& times) {
  check_costs(schedule, costs);
  check_room_at_homes(schedule, costs);
  check_times(schedule, times.duration, "durations");
  check_times(schedule, times.transfer, "transfer times");
  if (const CheckResult result = check(schedule); !result.ok()) {
    throw InputError(fmt::format("schedule {}: {}", schedule.name(), result.problem));
  }
  Simulation simulation(schedule, costs, times);
  simulation.run();
  return simulation;
}

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs, const JobTimes& times) {
  if (schedule.has_pairs() && !costs.overlap) return simulate(schedule.without_pairs(), costs, times);
  Simulation run = simulated(schedule, costs, times);
  const std::optional<double> last_sum = run.last_sum();
  auto [spans, ready, order] = std::move(run).take();
  Timeline timeline = evaluate(schedule, costs, std::move(spans), std::move(order));
  timeline.ready = std::move(ready);
  timeline.gradients_summed = last_sum ? std::max(timeline.makespan, *last_sum - first_start(timeline))
                                       : gradients_summed(schedule, costs, timeline);
  return timeline;
}

double simulated_makespan(const Schedule& schedule, const Costs& costs, const JobTimes& times) {
  if (schedule.has_pairs() && !costs.overlap)
    return simulated_makespan(schedule.without_pairs(), costs, times);
  return simulated(schedule, costs, times).makespan();
}

Schedule ordered_as_simulated(const Schedule& schedule, const Costs& costs) {
  // n of an ordered schedule says more than who comes first on a worker: when memory is free for copies.
  if (schedule.copies() || schedule.has_pairs()) {
    simulated_makespan(schedule, with_known_copies(costs));  // for its errors
    return schedule;
  }
  const JobTimes none;
  const Simulation run = simulated(schedule, costs, none);
  std::vector<std::int64_t> position(schedule.id_count(), 0);
  for (std::size_t i = 0; i < run.started().size(); ++i)
    position[run.started()[i]] = static_cast<std::int64_t>(i);
  return schedule.ordered_by(position);
}

}  // namespace starpipe::plan
