// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/simulate.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <queue>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "plan/simulate/producers.hpp"
#include "plan/simulate/stashes.hpp"
#include "starpipe/base/amounts.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/reductions.hpp"
#include "starpipe/plan/simulate/worker_queue.hpp"

namespace starpipe::plan {
namespace {

void check_costs(const Schedule& schedule, const Costs& costs) {
  const auto stages = index(schedule.stages());
  if (costs.durations.size() != 1 && costs.durations.size() != stages) {
    throw InputError(
        fmt::format("durations for {} stages, the schedule has {}", costs.durations.size(), stages));
  }
  if (costs.sizes.size() != 1 && costs.sizes.size() != stages) {
    throw InputError(fmt::format("sizes of {} stages, the schedule has {}", costs.sizes.size(), stages));
  }
  for (std::size_t s = 0; s < costs.durations.size(); ++s) {
    const Durations& d = costs.durations[s];
    if (!finite_amounts.contains(d.F) || !finite_amounts.contains(d.B) || !finite_amounts.contains(d.W)) {
      throw InputError(fmt::format("durations of stage {} must be {} (F={}, B={}, W={})", s,
                                   finite_amounts.text(), d.F, d.B, d.W));
    }
  }
  if (!finite_amounts.contains(costs.alpha) || !finite_amounts.contains(costs.beta)) {
    throw InputError(fmt::format("communication costs must be {} (alpha={}, beta={})", finite_amounts.text(),
                                 costs.alpha, costs.beta));
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

// An input of a job that lies on another worker. Kind, producer and stage name the copy, so that a second
// reader on the same worker does not fetch it again.
struct Fetch {
  enum class Kind : std::uint8_t { activation, stash, gradient_stash, gradient, weights };
  Kind kind;
  JobId producer;  // for weights: the holder
  int stage;       // for weights that stages share: the number of stages, and the set's number
  std::uint64_t bytes;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const Costs& costs, const JobTimes& times)
      : schedule_(schedule),
        costs_(costs),
        times_(times),
        spans_(schedule.id_count()),
        waiting_(schedule.id_count(), 0),
        ready_at_(schedule.id_count(), 0),
        running_(index(schedule.workers()), false) {
    queues_.reserve(running_.size());
    for (int w = 0; w < schedule.workers(); ++w) queues_.emplace_back(schedule, w);
    for (const SharedWeights& shared : costs.shared)
      holders_.emplace_back(schedule, schedule, shared.stages.front());
  }

  void run() {
    for (const JobId id : schedule_.order()) {
      waiting_[id] = schedule_.pred_count(id);
      if (costs_.prefetch && transfers_cost()) ready_at_[id] = weights_arrival(id);
      if (waiting_[id] == 0) events_.push({ready_at_[id], id, Event::Kind::ready});
    }
    while (!events_.empty()) {
      const double now = events_.top().time;
      for (; !events_.empty() && events_.top().time == now; events_.pop()) handle(events_.top());
      for (const int worker : touched_) start_next(worker, now);
      touched_.clear();
    }
  }

  std::vector<Span> spans() && { return std::move(spans_); }
  /// By JobId: see Timeline.
  std::vector<double> ready() && { return std::move(ready_at_); }
  /// By worker: its jobs in the order in which they started.
  [[nodiscard]] std::vector<std::vector<JobId>> order() const {
    std::vector<std::vector<JobId>> rows(running_.size());
    for (const JobId id : started_) rows[index(schedule_.compute(id))].push_back(id);
    return rows;
  }
  /// The jobs in the order in which they started.
  [[nodiscard]] const std::vector<JobId>& started() const { return started_; }

 private:
  struct Event {
    enum class Kind : std::uint8_t { ready, end };
    double time;
    JobId job;
    Kind kind;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : job > other.job;
    }
  };

  [[nodiscard]] bool transfers_cost() const { return costs_.link().takes_time() || !times_.transfer.empty(); }
  [[nodiscard]] double transfer_time(std::uint64_t bytes) const { return costs_.link().time(bytes); }

  // Calls f(Fetch) for each input of `id` that lies on another worker.
  template <class Function>
  void for_each_fetch(JobId id, Function&& f) const {
    const Job job = schedule_.job(id);
    const Placement at = schedule_.placement(id);
    const StageSizes& size = costs_.size(job.stage);
    const auto from = [&](JobId producer, Fetch::Kind kind, std::uint64_t bytes) {
      if (schedule_.compute(producer) != at.compute) f(Fetch{kind, producer, job.stage, bytes});
    };
    const JobId stash_maker = schedule_.stash_maker(job.stage, job.microbatch);
    if (job.pass == Pass::F || id == stash_maker) {
      for (const int p : schedule_.graph().pred(job.stage)) {
        from(schedule_.forward(p, job.microbatch), Fetch::Kind::activation, costs_.size(p).activation);
      }
    } else {
      from(stash_maker, Fetch::Kind::stash, size.stash);
    }
    if (job.pass == Pass::B || job.pass == Pass::BW) {
      for (const int s : schedule_.graph().succ(job.stage)) {
        from(schedule_.backward(s, job.microbatch), Fetch::Kind::gradient, size.gradient);
      }
    }
    if (job.pass == Pass::W)
      from(schedule_.backward(job.stage, job.microbatch), Fetch::Kind::gradient_stash, size.gradient_stash);
    for_each_weights_fetch(id, f);
  }

  template <class Function>
  void for_each_weights_fetch(JobId id, Function&& f) const {
    const Job job = schedule_.job(id);
    const auto [holder, worker] = schedule_.placement(id);
    if (job.pass == Pass::W) return;
    const StageSizes& size = costs_.size(job.stage);
    if (holder != worker && size.has_weights)
      f(Fetch{Fetch::Kind::weights, static_cast<JobId>(holder), job.stage, size.weights});
    for (std::size_t k = 0; k < holders_.size(); ++k) {
      if (!std::ranges::binary_search(costs_.shared[k].stages, job.stage)) continue;
      const int from = holders_[k].of(id);
      if (from == worker) continue;
      f(Fetch{Fetch::Kind::weights, static_cast<JobId>(from), schedule_.stages() + static_cast<int>(k),
              costs_.shared[k].weights});
    }
  }

  [[nodiscard]] bool fetches_weights(JobId id) const {
    bool any = false;
    for_each_weights_fetch(id, [&any](const Fetch&) { any = true; });
    return any;
  }

  // The last end of a producer on another worker, 0 before it has ended; nothing when there is no such
  // producer.
  [[nodiscard]] std::optional<double> last_sent(JobId id) const {
    std::optional<double> last;
    detail::for_each_producer(schedule_, id, [&](JobId producer) {
      if (schedule_.compute(producer) == schedule_.compute(id)) return;
      last = std::max(last.value_or(0), spans_[producer].end);
    });
    return last;
  }

  [[nodiscard]] double weights_arrival(JobId id) const {
    if (!fetches_weights(id)) return 0;
    if (times_.transfer.empty()) {
      double last = 0;
      for_each_weights_fetch(id,
                             [&](const Fetch& fetch) { last = std::max(last, transfer_time(fetch.bytes)); });
      return last;
    }
    return last_sent(id) ? 0 : times_.transfer[id];
  }

  // The time at which all inputs of `id` are on its worker. Their producers must have ended.
  [[nodiscard]] double inputs_arrival(JobId id) const {
    double time = ready_at_[id];
    if (!times_.transfer.empty()) {
      const std::optional<double> sent = last_sent(id);
      return sent ? std::max(time, *sent + times_.transfer[id]) : time;
    }
    for_each_fetch(id, [&](const Fetch& fetch) {
      if (fetch.kind == Fetch::Kind::weights) return;
      time = std::max(time, spans_[fetch.producer].end + transfer_time(fetch.bytes));
    });
    return time;
  }

  // How long the worker of `id` waits for the inputs, when it asks for them only now.
  double fetch_time(JobId id) {
    if (!times_.transfer.empty()) return fetches_weights(id) || last_sent(id) ? times_.transfer[id] : 0;
    double time = 0;
    for_each_fetch(id, [&](const Fetch& fetch) {
      const auto worker = static_cast<std::uint64_t>(schedule_.compute(id));
      // Gradients from several successors have one producer each, so (kind, producer, worker) names a
      // copy. A holder may send the weights of several stages, so these need their stage too.
      const auto stage = fetch.kind == Fetch::Kind::weights ? static_cast<std::uint64_t>(fetch.stage) : 0;
      const auto job_count = static_cast<std::uint64_t>(schedule_.id_count()) + running_.size();
      const auto copies = static_cast<std::uint64_t>(fetch.kind) * job_count + fetch.producer;
      const auto key =
          (copies * running_.size() + worker) * (index(schedule_.stages()) + holders_.size()) + stage;
      const bool shared = fetch.kind == Fetch::Kind::activation || fetch.kind == Fetch::Kind::weights ||
                          fetch.kind == Fetch::Kind::stash;
      if (shared && !fetched_.insert(key).second) return;
      time += transfer_time(fetch.bytes);
    });
    return time;
  }

  void handle(const Event event) {  // by value, because it pushes to the heap that the event came from
    const int worker = schedule_.compute(event.job);
    touched_.push_back(worker);
    auto& queue = queues_[index(worker)];
    if (event.kind == Event::Kind::ready) {
      ready_at_[event.job] = event.time;
      queue.push(event.job);
      return;
    }
    queue.finish(event.job);
    running_[index(worker)] = false;
    schedule_.for_each_succ(event.job, [&](JobId next) {
      if (--waiting_[next] > 0) return;
      double time = event.time;
      if (costs_.prefetch && transfers_cost()) time = std::max(time, inputs_arrival(next));
      if (time > event.time) {
        events_.push({time, next, Event::Kind::ready});
        return;
      }
      ready_at_[next] = event.time;
      const int next_worker = schedule_.compute(next);
      queues_[index(next_worker)].push(next);
      touched_.push_back(next_worker);
    });
  }

  void start_next(int worker, double now) {
    const auto w = index(worker);
    if (running_[w]) return;
    const std::optional<JobId> id = queues_[w].pop();
    if (!id) return;
    running_[w] = true;
    started_.push_back(*id);
    const Job job = schedule_.job(*id);
    const double start = costs_.prefetch || !transfers_cost() ? now : now + fetch_time(*id);
    if (!costs_.prefetch) ready_at_[*id] = start;
    const double duration =
        times_.duration.empty() ? costs_.duration(job.stage).of(job.pass) : times_.duration[*id];
    spans_[*id] = {start, start + duration};
    events_.push({spans_[*id].end, *id, Event::Kind::end});
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const JobTimes& times_;
  std::vector<Span> spans_;
  std::vector<JobId> started_;
  std::vector<int> waiting_;      // number of inputs still missing, by JobId
  std::vector<double> ready_at_;  // by JobId: earliest time to become ready; then when it became ready
  std::vector<bool> running_;     // by worker
  std::vector<WorkerQueue> queues_;
  std::vector<SharedHolders> holders_;  // of Costs::shared
  std::vector<int> touched_;            // workers that may start a job now
  std::unordered_set<std::uint64_t> fetched_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

Simulation simulated(const Schedule& schedule, const Costs& costs, const JobTimes& times) {
  check_costs(schedule, costs);
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
  std::vector<std::vector<JobId>> order;
  std::vector<double> ready;
  std::vector<Span> spans;
  {
    Simulation run = simulated(schedule, costs, times);
    order = run.order();
    ready = std::move(run).ready();
    spans = std::move(run).spans();
  }  // the simulation's tables are not needed below
  Timeline timeline = evaluate(schedule, costs, std::move(spans), std::move(order));
  timeline.ready = std::move(ready);
  return timeline;
}

double simulated_makespan(const Schedule& schedule, const Costs& costs, const JobTimes& times) {
  const std::vector<Span> spans = simulated(schedule, costs, times).spans();
  double first = spans[schedule.order().front()].start;
  double last = first;
  for (const JobId id : schedule.order()) {
    first = std::min(first, spans[id].start);
    last = std::max(last, spans[id].end);
  }
  return last - first;
}

Schedule ordered_as_simulated(const Schedule& schedule, const Costs& costs) {
  const JobTimes none;
  const Simulation run = simulated(schedule, costs, none);
  std::vector<std::int64_t> position(schedule.id_count(), 0);
  for (std::size_t i = 0; i < run.started().size(); ++i)
    position[run.started()[i]] = static_cast<std::int64_t>(i);
  const auto id = [&](const Job& job) { return *schedule.find(job); };
  ScheduleSpec spec;
  spec.name = schedule.name();
  spec.graph = schedule.graph();
  spec.microbatches = schedule.microbatches();
  spec.workers = schedule.workers();
  spec.split_backward = [&](int stage, int microbatch) { return schedule.split_backward(stage, microbatch); };
  spec.placement = [&](const Job& job) { return schedule.placement(id(job)); };
  spec.priority = [&](const Job& job) { return position[id(job)]; };
  spec.memory_limits.assign(schedule.memory_limits().begin(), schedule.memory_limits().end());
  spec.recompute = schedule.recompute();
  return Schedule(spec);
}

}  // namespace starpipe::plan
