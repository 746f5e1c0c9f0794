// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/memory_need.hpp"

#include <algorithm>
#include <compare>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/engine/data_use.hpp"
#include "runtime/engine/kernels.hpp"
#include "runtime/engine/received_data.hpp"
#include "runtime/engine/task_graph.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::runtime {
namespace {

using Part = std::uint64_t WorkerMemory::*;

/// A moment at which a datum comes to a device or leaves it. Events at one time have this order: jobs that
/// began earlier end; data of other devices leave and arrive; jobs begin. So consecutive jobs do not overlap.
/// Jobs of zero length are ordered by their position on the worker.
struct Moment {
  enum class Phase : std::uint8_t { end, leave, arrive, gone, job };

  double time = 0;
  Phase phase = Phase::job;
  std::uint32_t position = 0;
  bool is_end = false;

  friend auto operator<=>(const Moment&, const Moment&) = default;
};

struct Lifetime {
  Moment from;
  Moment to;
};

constexpr Lifetime lasting = {{.time = -std::numeric_limits<double>::infinity()},
                              {.time = std::numeric_limits<double>::infinity()}};

Part part_of(DataKind kind) {
  switch (kind) {
    case DataKind::weights:
    case DataKind::master:
      return &WorkerMemory::weights;
    case DataKind::optimizer_state:
      return &WorkerMemory::optimizer;
    case DataKind::weight_gradient:
    case DataKind::gradient_segment:
      return &WorkerMemory::gradients;
    case DataKind::stash:
    case DataKind::gradient_stash:
    case DataKind::keys_values:
    case DataKind::keys_values_gradient:
      return &WorkerMemory::stashes;
    default:
      return &WorkerMemory::activations;
  }
}

/// The memory that one device holds over time.
class Holdings {
 public:
  void add(Part part, std::uint64_t bytes, const Lifetime& lifetime) {
    changes_.push_back({lifetime.from, part, static_cast<std::int64_t>(bytes)});
    changes_.push_back({lifetime.to, part, -static_cast<std::int64_t>(bytes)});
  }

  void add(const Holdings& other) {
    changes_.insert(changes_.end(), other.changes_.begin(), other.changes_.end());
  }

  /// Returns the last time at which a datum that does not last came or left; 0 if there is none.
  [[nodiscard]] double last_change() const {
    double last = 0;
    for (const Change& change : changes_) {
      if (change.moment.time < lasting.to.time) last = std::max(last, change.moment.time);
    }
    return last;
  }

  void sort() { std::ranges::sort(changes_, {}, &Change::moment); }

  /// Returns the memory at the moment with the largest total. Call it after `sort`.
  [[nodiscard]] WorkerMemory peak() const {
    WorkerMemory now;
    WorkerMemory max;
    for (const Change& change : changes_) {
      now.*change.part += static_cast<std::uint64_t>(change.bytes);  // an end adds modulo 2^64
      if (change.bytes > 0 && now.total() > max.total()) max = now;
    }
    return max;
  }

  /// Returns the memory that would be enough if each piece of it served data of one size only. Call it after
  /// `sort`.
  [[nodiscard]] std::uint64_t total_by_size() const {
    struct Count {
      std::uint64_t now = 0;
      std::uint64_t max = 0;
    };
    std::map<std::uint64_t, Count> by_size;
    for (const Change& change : changes_) {
      Count& count = by_size[static_cast<std::uint64_t>(std::abs(change.bytes))];
      count.now += change.bytes > 0 ? 1 : std::uint64_t{0} - 1;
      count.max = std::max(count.max, count.now);
    }
    std::uint64_t total = 0;
    for (const auto& [size, count] : by_size) total += size * count.max;
    return total;
  }

  /// Returns the total until `end`, as DeviceNeed::over_time has it. Call it after `sort`.
  [[nodiscard]] std::vector<MemoryLevel> levels(double end) const {
    std::vector<MemoryLevel> exact = exact_levels(end);
    if (exact.size() < max_levels) return exact;
    std::vector<MemoryLevel> largest;
    const double part = end / static_cast<double>(max_levels);
    std::uint64_t now = 0;
    auto next = exact.begin();
    for (std::size_t i = 0; i < max_levels; ++i) {
      const bool is_last = i + 1 == max_levels;
      std::uint64_t max = now;
      for (; next != exact.end() && (is_last || next->time < static_cast<double>(i + 1) * part); ++next) {
        now = next->bytes;
        max = std::max(max, now);
      }
      if (largest.empty() || largest.back().bytes != max)
        largest.push_back({static_cast<double>(i) * part, max});
    }
    return largest;
  }

 private:
  struct Change {
    Moment moment;
    Part part;
    std::int64_t bytes;
  };

  /// Returns the total after each time at which it changes; also a larger one that it has only at that time.
  [[nodiscard]] std::vector<MemoryLevel> exact_levels(double end) const {
    std::vector<MemoryLevel> levels;
    std::uint64_t now = 0;
    for (auto change = changes_.begin(); change != changes_.end() && change->moment.time <= end;) {
      const double time = std::max(change->moment.time, 0.0);
      std::uint64_t max = 0;
      for (; change != changes_.end() && std::max(change->moment.time, 0.0) == time; ++change) {
        now += static_cast<std::uint64_t>(change->bytes);  // an end adds modulo 2^64
        if (change->bytes > 0) max = std::max(max, now);
      }
      const std::uint64_t before = levels.empty() ? 0 : levels.back().bytes;
      if (max > now && max > before) levels.push_back({time, max});
      if (levels.empty() || levels.back().bytes != now) levels.push_back({time, now});
    }
    return levels;
  }

  std::vector<Change> changes_;
};

/// Visits the tasks of a step in the graph's order, and notes when each datum is on each device.
class Accountant {
 public:
  Accountant(const plan::Schedule& schedule, const plan::Costs& costs, const plan::Timeline& timeline,
             const TaskGraph& graph, const WorkerDevices& workers)
      : schedule_(schedule),
        costs_(costs),
        timeline_(timeline),
        graph_(graph),
        workers_(workers),
        early_(early_inputs(graph)),
        position_(schedule.id_count()),
        written_(graph.data().size(), 0),
        holdings_(index(std::ranges::max(workers.devices)) + 1) {
    for (const std::vector<plan::JobId>& row : timeline.order) {
      for (std::size_t i = 0; i < row.size(); ++i) position_[row[i]] = static_cast<std::uint32_t>(i);
    }
    if (!schedule.copies()) return;
    place_ = {schedule.turns().begin(), schedule.turns().end()};
    // A copy out may last until the stash is needed at its other end, or until a job waits for the memory
    // that it frees. A channel runs one at a time.
    for (int worker = 0; worker < schedule.workers(); ++worker) {
      double next = std::numeric_limits<double>::infinity();  // when the copy behind must have ended
      const std::vector<plan::JobId> copies = schedule.copies_of(worker, plan::Channel::out);
      for (auto at = copies.rbegin(); at != copies.rend(); ++at) {
        const auto [stage, microbatch, pass] = schedule.job(*at);
        const plan::JobId reader =
            pass == plan::Pass::O ? schedule.reload(stage, microbatch) : schedule.backward(stage, microbatch);
        next = std::min(next, timeline.spans[reader].start);
        schedule.for_each_after_by_n(*at, [&](plan::JobId waits) {
          const bool is_behind = at.base() != copies.end() && *at.base() == waits;
          if (!is_behind) next = std::min(next, timeline.spans[waits].start);
        });
        freed_[*at] = next;
      }
    }
  }

  /// `with_weights`: the weights that last over the steps are counted, too.
  std::vector<Holdings> holdings(bool with_weights = true) {
    for (const Task& task : graph_.tasks()) take(task);
    std::ranges::sort(touches_, {}, [](const Touch& t) { return std::pair(t.datum, t.device); });
    for (auto first = touches_.begin(); first != touches_.end();) {
      Lifetime lifetime = first->lifetime;
      auto next = first + 1;
      for (; next != touches_.end() && next->datum == first->datum && next->device == first->device; ++next) {
        lifetime.from = std::min(lifetime.from, next->lifetime.from);
        lifetime.to = std::max(lifetime.to, next->lifetime.to);
      }
      hold(first->datum, first->device, lifetime);
      first = next;
    }
    for (std::size_t d = 0; d < graph_.data().size(); ++d) {
      const Datum& datum = graph_.data()[d];
      if (datum.kind == DataKind::weights && !with_weights) continue;
      if (!comes_and_goes(datum) && !is_on_host(datum, datum.worker)) hold(d, device(datum.worker), lasting);
      if (!is_temporary(datum.kind) && !workers_.rank_of.empty() && workers_.on_gpu[index(datum.worker)])
        hold(d, workers_.rank_of[index(datum.worker)], lasting);
    }
    return std::move(holdings_);
  }

 private:
  struct Touch {
    std::size_t datum;
    int device;
    Lifetime lifetime;
  };

  [[nodiscard]] int device(int worker) const { return workers_.devices[index(worker)]; }

  // True if the datum of a GPU's worker is in the host's memory. Verdicts are, and ends of passes where GPUs
  // copy stashes. If passes precede a verdict, StarPU copies it to the GPU.
  [[nodiscard]] bool is_on_host(const Datum& datum, int worker) const {
    if (!workers_.on_gpu[index(worker)]) return false;
    return datum.kind == DataKind::verdict ? !graph_.rules().can_skip
                                           : datum.kind == DataKind::end_of_pass && schedule_.copies();
  }

  // True if the worker receives the datum from another rank: `add_received` counts it.
  [[nodiscard]] bool is_received(const Datum& datum, int worker) const {
    return !workers_.rank_of.empty() &&
           workers_.rank_of[index(datum.worker)] != workers_.rank_of[index(worker)];
  }

  // True if the datum lies in other data of its writer: a core sends segments from its gradient's memory.
  [[nodiscard]] bool is_in_place(const Datum& datum) const {
    return datum.kind == DataKind::gradient_segment && !workers_.on_gpu[index(datum.worker)];
  }

  // Inputs and targets are in the host's memory. StarPU copies them to the GPU for the jobs that read them.
  [[nodiscard]] bool comes_and_goes(const Datum& datum) const {
    return is_temporary(datum.kind) || (is_from_host(datum.kind) && workers_.on_gpu[index(datum.worker)]);
  }

  void hold(std::size_t datum, int device, const Lifetime& lifetime) {
    const Datum& held = graph_.data()[datum];
    holdings_[index(device)].add(part_of(held.kind), held.bytes(), lifetime);
  }

  // Returns the time at which a datum is on `worker`, if no other transfer delays its own.
  [[nodiscard]] double arrival(std::size_t datum, int worker) const {
    const Datum& sent = graph_.data()[datum];
    return written_[datum] + costs_.link(sent.worker, worker).time(sent.bytes());
  }

  // A job has the times of the timeline. Any other task starts and ends when its last input is there.
  [[nodiscard]] plan::Span time_of(const Task& task) const {
    if (task.job) return timeline_.spans[*task.job];
    double time = 0;
    for (const DataAccess& access : task.data) {
      const bool is_here = graph_.data()[access.datum].worker == task.worker;
      time = std::max(time, is_here ? written_[access.datum] : arrival(access.datum, task.worker));
    }
    return {time, time};
  }

  // Lifetimes of data of other devices, and of tasks that are not jobs.
  static Lifetime by_time(double from, double to) {
    return {{.time = from, .phase = Moment::Phase::arrive},
            {.time = to, .phase = from < to ? Moment::Phase::leave : Moment::Phase::gone}};
  }

  [[nodiscard]] Lifetime lifetime_of(const Task& task, plan::Span time) const {
    if (!task.job) return by_time(time.start, time.end);
    const std::uint32_t position = place_.empty() ? position_[*task.job] : place_[*task.job];
    if (const auto freed = freed_.find(*task.job); freed != freed_.end())
      time.end = std::max(freed->second, time.end);
    const auto end = time.start < time.end ? Moment::Phase::end : Moment::Phase::job;
    return {{.time = time.start, .position = position},
            {.time = time.end, .phase = end, .position = position, .is_end = true}};
  }

  // Returns the moment at which StarPU is asked for an input or a target of the task, a job: at the start of
  // the step (StepData::fetch_ahead), or by the policy, and other jobs of its worker run before it.
  [[nodiscard]] Moment fetched(std::size_t datum, const Task& task) const {
    if (schedule_.copies() && early_[datum]) return {.time = 0, .phase = Moment::Phase::arrive};
    const std::vector<plan::JobId>& row = timeline_.order[index(task.worker)];
    const std::size_t position = position_[*task.job];
    const plan::JobId before = row[position - std::min(position, jobs_fetched_ahead)];
    return {.time = timeline_.spans[before].start, .phase = Moment::Phase::arrive};
  }

  void touch(std::size_t datum, int worker, const Lifetime& lifetime) {
    touches_.push_back({datum, device(worker), lifetime});
  }

  // Notes the host's memory of a stash that a GPU's worker copies there. It begins with O. StarPU does not
  // free it when L ends, but after the last pass that reads the stash.
  void wait_on_host(const Task& task) {
    const plan::Job job = schedule_.job(*task.job);
    const double end = timeline_.spans[schedule_.weight_gradient(job.stage, job.microbatch)].end;
    for (const DataAccess& access : task.data) {
      if (graph_.data()[access.datum].kind != DataKind::stash) continue;
      hold(access.datum, workers_.rank_of[index(task.worker)],
           by_time(timeline_.spans[*task.job].start, end));
    }
  }

  void take(const Task& task) {
    const plan::Span time = time_of(task);
    const Lifetime lifetime = lifetime_of(task, time);
    const bool has_gpu = !workers_.rank_of.empty() && workers_.on_gpu[index(task.worker)];
    if (task.kind == TaskKind::O && has_gpu && !schedule_.peer(*task.job)) wait_on_host(task);
    for (const auto& [datum, access] : task.data) {
      const Datum& accessed = graph_.data()[datum];
      if (device(accessed.worker) == device(task.worker)) {
        if (comes_and_goes(accessed) && !is_in_place(accessed) && !is_on_host(accessed, task.worker))
          touch(datum, task.worker,
                is_temporary(accessed.kind) ? lifetime : Lifetime{fetched(datum, task), lifetime.to});
        if (access != Access::read) written_[datum] = std::max(written_[datum], time.end);
        continue;
      }
      if (is_on_host(accessed, task.worker)) continue;
      if (is_stash_copy(task.kind) && accessed.kind == DataKind::stash) {
        // It stays where it is until the copy has ended; `add_received` counts the buffers of a rank.
        touch(datum, accessed.worker, lifetime);
        continue;
      }
      const bool is_counted = is_received(accessed, task.worker) && !workers_.on_gpu[index(task.worker)];
      const double sent = arrival(datum, task.worker);
      const double from = costs_.prefetch ? std::min(sent, time.start) : time.start;
      // Where transfers delay each other, the datum may arrive later, but before the task starts.
      const bool delayed = costs_.transfers_wait() && sent < time.start;
      if (!is_counted) touch(datum, task.worker, {by_time(from, time.end).from, lifetime.to});
      if (is_temporary(accessed.kind) && !is_in_place(accessed))
        touch(datum, accessed.worker, by_time(from, costs_.prefetch && !delayed ? sent : time.start));
    }
  }

  const plan::Schedule& schedule_;
  const plan::Costs& costs_;
  const plan::Timeline& timeline_;
  const TaskGraph& graph_;
  const WorkerDevices& workers_;         // complete
  std::vector<bool> early_;              // by datum: see `early_inputs`
  std::vector<std::uint32_t> position_;  // by JobId: index in the order of its worker
  std::vector<std::uint32_t> place_;     // by JobId, where stashes are copied: its place by n
  std::map<plan::JobId, double> freed_;  // of each O: the latest time at which it has freed the stash
  std::vector<double> written_;          // by datum: when its value is ready
  std::vector<Touch> touches_;           // uses of data that come and go, and of copies of all other data
  std::vector<Holdings> holdings_;
};

/// Returns the times of an evaluation that begins at `start`: each worker runs its jobs in the graph's order,
/// each as soon as its inputs are there.
plan::Timeline evaluation_timeline(const plan::Schedule& forward, const TaskGraph& graph,
                                   const plan::Costs& costs, double start) {
  plan::Timeline timeline;
  timeline.spans.resize(forward.id_count());
  timeline.order.resize(index(forward.workers()));
  std::vector<double> free(timeline.order.size(), start);
  std::vector<double> written(graph.data().size(), start);
  for (const Task& task : graph.tasks()) {
    double begin = free[index(task.worker)];
    for (const auto& [datum, access] : task.data) {
      const bool here = graph.data()[datum].worker == task.worker;
      const Datum& read = graph.data()[datum];
      const double sent = here ? 0 : costs.link(read.worker, task.worker).time(read.bytes());
      begin = std::max(begin, written[datum] + sent);
    }
    const double end = begin + costs.duration(task.stage, task.microbatch).F;
    for (const auto& [datum, access] : task.data) {
      if (access == Access::write) written[datum] = end;
    }
    free[index(task.worker)] = end;
    timeline.spans[*task.job] = {begin, end};
    timeline.order[index(task.worker)].push_back(*task.job);
  }
  return timeline;
}

/// Sets the members that `workers` leaves empty.
WorkerDevices complete(WorkerDevices workers, int count) {
  if (workers.devices.empty()) {
    workers.devices.resize(index(count));
    std::iota(workers.devices.begin(), workers.devices.end(), 0);
  }
  if (workers.on_gpu.empty()) workers.on_gpu.assign(index(count), false);
  return workers;
}

/// Adds the workspaces, which last: StarPU keeps the workspace of each stage that a worker has run, and the
/// workspace of a GPU's norms.
void add_workspaces(const plan::Schedule& schedule, const model::Network& network, const TaskGraph& graph,
                    const WorkerDevices& workers, std::vector<Holdings>& holdings) {
  std::vector<std::set<int>> stages(workers.devices.size());  // by worker: the stages that it computes
  std::vector<bool> has_norm(workers.devices.size(), false);
  for (const Task& task : graph.tasks()) {
    if (is_pass(task.kind)) stages[index(task.worker)].insert(task.stage);
    if (task.kind == TaskKind::norm) has_norm[index(task.worker)] = true;
  }
  for (std::size_t w = 0; w < stages.size(); ++w) {
    const bool on_gpu = workers.on_gpu[w];
    std::size_t words = on_gpu && has_norm[w] ? norm_scratch_size(graph) : 0;
    for (const int s : stages[w]) words += scratch_size(schedule, network, s, on_gpu, graph.rules());
    holdings[index(workers.devices[w])].add(&WorkerMemory::workspace, words * sizeof(float), lasting);
  }
}

/// Adds to each rank the data that it receives from others, with the activations for `lifetime`.
/// `with_weights`: adds fetched weights and the buffers of gradients, too, which last over the steps.
void add_received(const TaskGraph& graph, const WorkerDevices& workers, const Lifetime& lifetime,
                  bool with_weights, std::vector<Holdings>& holdings) {
  if (workers.rank_of.empty()) return;
  const std::vector<ReceivedBytes> received = received_bytes(graph, workers.rank_of, workers.window);
  for (std::size_t r = 0; r < received.size(); ++r) {
    holdings[r].add(&WorkerMemory::activations, received[r].others, lifetime);
    if (!with_weights) continue;
    holdings[r].add(&WorkerMemory::weights, received[r].weights, lasting);
    holdings[r].add(&WorkerMemory::gradients, received[r].segments, lasting);
    holdings[r].add(&WorkerMemory::stashes, received[r].stashes, lasting);
  }
}

/// Returns the memory that the evaluations of a run hold on each device, from `start` on. `alone`: of a run
/// that does not train; else without weights and workspaces, which the training has.
std::vector<Holdings> evaluation_holdings(const plan::Schedule& schedule, const model::Network& network,
                                          const plan::Costs& costs, int microbatches,
                                          const WorkerDevices& workers, double start, bool alone) {
  const plan::Schedule forward = plan::forward_passes(schedule, microbatches * schedule.slices());
  const TaskGraph graph = TaskGraph::evaluation(schedule, forward, network);
  const plan::Timeline timeline = evaluation_timeline(forward, graph, costs, start);
  std::vector<Holdings> holdings = Accountant(forward, costs, timeline, graph, workers).holdings(alone);
  add_received(graph, workers, {{.time = start}, lasting.to}, alone, holdings);
  if (alone) add_workspaces(forward, network, graph, workers, holdings);
  return holdings;
}

/// Returns the memory that the step, and the evaluations of `rules` after it, hold on each device.
std::vector<Holdings> step_holdings(const plan::Schedule& schedule, const model::Network& network,
                                    const model::OptimizerConfig& optimizer, const plan::Costs& costs,
                                    const plan::Timeline& timeline, const WorkerDevices& workers,
                                    const StepRules& rules) {
  const TaskGraph graph(schedule, network, optimizer, rules);
  std::vector<Holdings> holdings = Accountant(schedule, costs, timeline, graph, workers).holdings();
  add_workspaces(schedule, network, graph, workers, holdings);
  // An evaluation begins when all data that belong to the step alone have gone.
  double start = 0;
  for (const Holdings& device : holdings) start = std::max(start, device.last_change());
  add_received(graph, workers, {lasting.from, {.time = start, .phase = Moment::Phase::end}}, true, holdings);
  if (rules.evaluated == 0) return holdings;
  const std::vector<Holdings> more =
      evaluation_holdings(schedule, network, costs, rules.evaluated, workers, start, false);
  for (std::size_t d = 0; d < holdings.size(); ++d) holdings[d].add(more[d]);
  return holdings;
}

}  // namespace

std::vector<WorkerMemory> evaluation_memory_need(const plan::Schedule& schedule,
                                                 const model::Network& network, const plan::Costs& costs,
                                                 int microbatches, const WorkerDevices& workers) {
  std::vector<WorkerMemory> needs;
  for (Holdings& device : evaluation_holdings(schedule, network, costs, microbatches,
                                              complete(workers, schedule.workers()), 0, true)) {
    device.sort();
    needs.push_back(device.peak());
  }
  return needs;
}

std::vector<WorkerMemory> memory_need(const plan::Schedule& schedule, const model::Network& network,
                                      const model::OptimizerConfig& optimizer, const plan::Costs& costs,
                                      const plan::Timeline& timeline, const WorkerDevices& workers,
                                      const StepRules& rules) {
  std::vector<WorkerMemory> peaks;
  for (const DeviceNeed& need :
       memory_need_over_time(schedule, network, optimizer, costs, timeline, workers, rules))
    peaks.push_back(need.peak);
  return peaks;
}

std::vector<DeviceNeed> memory_need_over_time(const plan::Schedule& schedule, const model::Network& network,
                                              const model::OptimizerConfig& optimizer,
                                              const plan::Costs& costs, const plan::Timeline& timeline,
                                              const WorkerDevices& workers, const StepRules& rules) {
  std::vector<DeviceNeed> needs;
  if (timeline.makespan <= 0) {  // then the order, not the times, tells which data are there together
    plan::Costs timed = plan::with_known_copies(costs);
    timed.durations = {{1, 1, 1}};
    needs = memory_need_over_time(schedule, network, optimizer, timed, plan::simulate(schedule, timed),
                                  workers, rules);
    for (DeviceNeed& need : needs) need.over_time.clear();
    return needs;
  }
  const double end = plan::first_start(timeline) + timeline.makespan;
  for (Holdings& device : step_holdings(schedule, network, optimizer, costs, timeline,
                                        complete(workers, schedule.workers()), rules)) {
    device.sort();
    const WorkerMemory peak = device.peak();
    needs.push_back(
        {.peak = peak, .over_time = device.levels(end), .kept = device.total_by_size() - peak.total()});
  }
  return needs;
}

}  // namespace starpipe::runtime
