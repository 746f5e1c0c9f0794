// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

/// The definitions in the headers of plan/, implemented a second time as directly as possible, without regard
/// to speed. Uses nothing of src/plan but the accessors of Schedule.
namespace starpipe::plan::testing {

/// An input of a job. It may come from another worker.
struct Input {
  enum Kind { activation, stash, gradient_stash, gradient, weights };
  Kind kind;
  int from;
  /// Equal for two inputs of jobs on one worker when they are the same datum.
  std::tuple<int, int, int> what;
  std::uint64_t bytes;
  /// The job that makes the input; nothing for weights, which exist from time 0.
  std::optional<JobId> maker;
};

/// The job that makes the stash.
inline JobId maker_of(const Schedule& schedule, int stage, int microbatch) {
  const std::optional<JobId> again = schedule.find({stage, microbatch, Pass::R});
  return again ? *again : *schedule.find({stage, microbatch, Pass::F});
}

inline std::vector<Input> inputs(const Schedule& schedule, const Costs& costs, JobId id) {
  const Job j = schedule.job(id);
  const auto size = [&](int s) { return costs.sizes[costs.sizes.size() == 1 ? 0 : index(s)]; };
  const auto at = [&](JobId other) { return schedule.compute(other); };
  std::vector<Input> result;
  if (j.pass == Pass::O || j.pass == Pass::L) return result;
  const bool remade = schedule.home(j.stage, j.microbatch) == Home::none;
  const bool late = j.pass == Pass::R && schedule.recomputes_late();
  const bool backward = j.pass == Pass::B || j.pass == Pass::BW;
  if (j.pass == Pass::F || j.pass == Pass::R) {
    for (const int s : schedule.graph().pred(j.stage)) {
      const JobId maker = schedule.forward(s, j.microbatch);
      result.push_back({Input::activation, at(maker), {s, j.microbatch, 0}, size(s).activation, maker});
    }
  } else {
    const JobId maker = *schedule.find({j.stage, j.microbatch, remade ? Pass::R : Pass::F});
    result.push_back({Input::stash, at(maker), {j.stage, j.microbatch, 0}, size(j.stage).stash, maker});
  }
  if (j.pass == Pass::W) {
    const JobId maker = schedule.backward(j.stage, j.microbatch);
    result.push_back(
        {Input::gradient_stash, at(maker), {j.stage, j.microbatch, 0}, size(j.stage).gradient_stash, maker});
  }
  if (backward || late) {
    for (const int s : schedule.graph().succ(j.stage)) {
      const JobId maker = schedule.backward(s, j.microbatch);
      result.push_back(
          {Input::gradient, at(maker), {j.stage, j.microbatch, s}, size(j.stage).gradient, maker});
    }
  }
  if (j.pass != Pass::W) {
    const int holder = schedule.placement(id).weights;
    result.push_back({Input::weights, holder, {j.stage, holder, 0}, size(j.stage).weights, {}});
  }
  return result;
}

inline double transfer_time(const Costs& costs, int from, int to, std::uint64_t bytes) {
  for (const LinkLevel& level : costs.links.levels()) {
    const bool last = &level == &costs.links.levels().back();
    if (!last && from / level.workers != to / level.workers) continue;
    return level.link.time(bytes);
  }
  return 0;
}

inline double duration(const Schedule& schedule, const Costs& costs, JobId id) {
  const Job j = schedule.job(id);
  const Durations& d = costs.durations[costs.durations.size() == 1 ? 0 : index(j.stage)];
  switch (j.pass) {
    case Pass::F:
    case Pass::R:
      return d.F;
    case Pass::B:
      return d.B;
    case Pass::W:
      return d.W;
    case Pass::BW:
      return d.B + d.W;
    case Pass::O:
    case Pass::L: {
      const Home home = schedule.home(j.stage, j.microbatch);
      const StageSizes& size = costs.sizes[costs.sizes.size() == 1 ? 0 : index(j.stage)];
      if (home.peer() && !costs.peer)
        return transfer_time(costs, schedule.compute(id), *home.peer(), size.stash);
      const HomeLink& link = home.peer() ? *costs.peer : home == Home::disk ? *costs.disk : *costs.host;
      return link.link.alpha + link.link.beta * static_cast<double>(size.stash);
    }
  }
  return 0;
}

/// Returns the jobs whose data `id` reads, or for which it waits as for data.
inline std::vector<JobId> data_preds(const Schedule& schedule, JobId id) {
  const auto [s, b, pass] = schedule.job(id);
  const bool copied = schedule.home(s, b) != Home::worker && schedule.home(s, b) != Home::none;
  const bool backward = pass == Pass::B || pass == Pass::BW;
  std::vector<Job> wanted;
  if (pass == Pass::F) {
    for (const int p : schedule.graph().pred(s)) wanted.push_back({p, b, Pass::F});
  }
  if (pass == Pass::O || pass == Pass::R) wanted.push_back({s, b, Pass::F});
  if (pass == Pass::L) wanted.push_back({s, b, Pass::O});
  if (backward) {
    wanted.push_back({s, b, copied ? Pass::L : schedule.home(s, b) == Home::none ? Pass::R : Pass::F});
  }
  if (pass == Pass::W) wanted.push_back({s, b, Pass::B});
  std::vector<JobId> jobs;
  for (const Job& job : wanted) jobs.push_back(*schedule.find(job));
  if (backward || (pass == Pass::R && schedule.recomputes_late())) {
    for (const int n : schedule.graph().succ(s)) jobs.push_back(schedule.backward(n, b));
  }
  return jobs;
}

/// Returns the worker of whose memory a job takes a part, or frees one, if stashes are copied.
struct MemoryUse {
  std::optional<int> takes = {};
  std::optional<int> frees = {};
};
inline MemoryUse memory_use(const Schedule& schedule, JobId id) {
  const auto [s, b, pass] = schedule.job(id);
  const int own = schedule.compute(id);
  const std::optional<int> peer = schedule.home(s, b).peer();
  if (pass == Pass::O) return {.takes = peer, .frees = own};
  if (pass == Pass::L) return {.takes = own, .frees = peer};
  if (pass == Pass::R || (pass == Pass::F && schedule.home(s, b) != Home::none)) return {.takes = own};
  if (pass == Pass::W || pass == Pass::BW) return {.frees = own};
  return {};
}

/// True if n says that `id` waits for the memory that `other` frees.
inline bool waits_for_memory(const Schedule& schedule, JobId id, JobId other) {
  if (!schedule.copies() || schedule.turn(other) > schedule.turn(id)) return false;
  const std::optional<int> taken = memory_use(schedule, id).takes;
  return taken && id != other && taken == memory_use(schedule, other).frees;
}

/// Returns the time at which the last input of `id` is on its worker, given the ends of the jobs before it.
inline double arrival(const Schedule& schedule, const Costs& costs, const std::vector<Span>& spans,
                      JobId id) {
  double result = 0;
  for (const JobId before : data_preds(schedule, id)) result = std::max(result, spans[before].end);
  for (const JobId other : schedule.copies() ? schedule.order() : std::span<const JobId>()) {
    if (waits_for_memory(schedule, id, other)) result = std::max(result, spans[other].end);
  }
  if (!costs.prefetch) return result;
  for (const Input& input : inputs(schedule, costs, id)) {
    const double travel = input.from == schedule.compute(id)
                              ? 0
                              : transfer_time(costs, input.from, schedule.compute(id), input.bytes);
    result = std::max(result, (input.maker ? spans[*input.maker].end : 0) + travel);
  }
  return result;
}

struct SlowRun {
  std::vector<Span> spans;
  /// Times at which workers picked their jobs: earlier than the start when the worker fetches inputs first.
  std::vector<double> picked;
  /// The jobs of each worker in the order in which they ran.
  std::vector<std::vector<JobId>> ran;
  bool finished = false;
};

/// Steps from event to event, and at each event asks every idle worker which of its jobs it may start. All
/// workers pick with the same knowledge. Jobs of zero length end at the same moment; their ends are known
/// when the workers are asked again.
inline SlowRun slow_simulate(const Schedule& schedule, const Costs& costs) {
  constexpr double never = std::numeric_limits<double>::infinity();
  SlowRun run;
  run.spans.assign(schedule.id_count(), {never, never});
  run.picked.assign(schedule.id_count(), never);
  run.ran.resize(index(schedule.workers()));
  std::vector<bool> started(schedule.id_count()), ended(schedule.id_count());
  std::vector<std::set<std::pair<int, std::tuple<int, int, int>>>> has(run.ran.size());
  std::vector<JobId> all;
  for (JobId id = 0; id < schedule.id_count(); ++id) {
    if (schedule.exists(id)) all.push_back(id);
  }

  // A worker has three lanes that run at the same time: it computes, copies out, and copies in. A copy from a
  // worker to another one uses a lane of both.
  const auto lanes_of = [&](JobId id) -> std::vector<std::size_t> {
    const auto [s, b, pass] = schedule.job(id);
    const std::size_t own = 3 * index(schedule.compute(id));
    const std::optional<int> peer = schedule.home(s, b).peer();
    if (pass != Pass::O && pass != Pass::L) return {own};
    const std::size_t out = pass == Pass::O ? 1 : 2;
    if (!peer) return {own + out};
    return {own + out, 3 * index(*peer) + 3 - out};
  };
  struct Lane {
    bool busy = false;
    std::optional<JobId> first_waiting, pick;
  };
  std::vector<std::vector<JobId>> preds(schedule.id_count());
  for (const JobId id : all) preds[id] = data_preds(schedule, id);
  const auto is_ready = [&](JobId id) {
    for (const JobId before : preds[id]) {
      if (!ended[before]) return false;
    }
    if (!schedule.copies()) return true;
    return std::ranges::none_of(
        all, [&](JobId other) { return waits_for_memory(schedule, id, other) && !ended[other]; });
  };
  const auto stash_is_live = [&](int s, int b, int worker) {
    const JobId maker = maker_of(schedule, s, b);
    return schedule.compute(maker) == worker && started[maker] &&
           !(ended[schedule.backward(s, b)] && ended[schedule.weight_gradient(s, b)]);
  };
  const bool all_remade = std::ranges::all_of(all, [&](JobId id) {
    return schedule.home(schedule.job(id).stage, schedule.job(id).microbatch) == Home::none;
  });
  const auto refused = [&](JobId id, int worker) {
    const Job j = schedule.job(id);
    if (schedule.memory_limits().empty()) return false;
    if (maker_of(schedule, j.stage, j.microbatch) != id) return false;  // it begins no stash
    if (all_remade) {
      int live = 0;
      for (int b = 0; b < schedule.microbatches(); ++b) {
        for (int s = 0; s < schedule.stages(); ++s) live += stash_is_live(s, b, worker) ? 1 : 0;
      }
      return live >= schedule.memory_limits()[index(worker)];
    }
    std::size_t max_stages = 0;
    std::map<std::uint32_t, int> unfinished;  // age -> micro-batch
    int others = 0;
    for (int b = 0; b < schedule.microbatches(); ++b) {
      std::size_t here = 0;
      std::uint32_t age = std::numeric_limits<std::uint32_t>::max();
      for (int s = 0; s < schedule.stages(); ++s) {
        here += schedule.compute(maker_of(schedule, s, b)) == worker ? 1U : 0U;
        age = std::min(age, schedule.turn(schedule.forward(s, b)));
      }
      max_stages = std::max(max_stages, here);
      for (const JobId other : all) {
        if (schedule.job(other).microbatch == b && schedule.compute(other) == worker && !ended[other]) {
          unfinished[age] = b;
        }
      }
    }
    const int oldest = unfinished.begin()->second;
    if (j.microbatch == oldest) return false;
    for (int b = 0; b < schedule.microbatches(); ++b) {
      for (int s = 0; s < schedule.stages(); ++s)
        others += b != oldest && stash_is_live(s, b, worker) ? 1 : 0;
    }
    return others + 1 > schedule.memory_limits()[index(worker)] - static_cast<int>(max_stages);
  };

  double now = 0;
  while (true) {
    for (const JobId id : all) ended[id] = started[id] && run.spans[id].end <= now;

    std::vector<std::pair<int, JobId>> picks;
    std::vector<Lane> lanes(3 * index(schedule.workers()));
    for (const JobId id : all) {
      for (const std::size_t number : lanes_of(id)) {
        Lane& lane = lanes[number];
        lane.busy = lane.busy || (started[id] && !ended[id]);
        if (started[id]) continue;
        if (!lane.first_waiting || schedule.turn(id) < schedule.turn(*lane.first_waiting)) {
          lane.first_waiting = id;
        }
        if (!is_ready(id) || arrival(schedule, costs, run.spans, id) > now) continue;
        if (schedule.discipline() == Discipline::bounded && refused(id, schedule.compute(id))) continue;
        if (!lane.pick || schedule.turn(id) < schedule.turn(*lane.pick)) lane.pick = id;
      }
    }
    for (const JobId id : all) {
      const std::vector<std::size_t> its = lanes_of(id);
      const bool picked = std::ranges::all_of(its, [&](std::size_t number) {
        const Lane& lane = lanes[number];
        const bool in_turn = schedule.discipline() != Discipline::ordered || lane.first_waiting == id;
        return !lane.busy && lane.pick == id && in_turn;
      });
      if (picked) picks.emplace_back(schedule.compute(id), id);
    }
    for (const auto& [worker, id] : picks) {
      double fetch = 0;
      for (const Input& input : inputs(schedule, costs, id)) {
        if (!costs.prefetch && input.from != worker &&
            has[index(worker)].insert({input.kind, input.what}).second) {
          fetch += transfer_time(costs, input.from, worker, input.bytes);
        }
      }
      started[id] = true;
      run.picked[id] = now;
      run.spans[id] = {now + fetch, now + fetch + duration(schedule, costs, id)};
      if (lanes_of(id).front() % 3 == 0) run.ran[index(worker)].push_back(id);
    }
    if (!picks.empty()) continue;  // ask again at the same moment: jobs may have ended

    double next = never;
    for (const JobId id : all) {
      if (started[id]) {
        if (!ended[id]) next = std::min(next, run.spans[id].end);
        continue;
      }
      if (is_ready(id)) {
        const double at = arrival(schedule, costs, run.spans, id);
        if (at > now) next = std::min(next, at);
      }
    }
    if (next == never) break;
    now = next;
  }
  run.finished = std::all_of(all.begin(), all.end(), [&](JobId id) { return ended[id]; });
  return run;
}

/// Returns what the workers receive in a step: every job's inputs that come from elsewhere, each once per
/// worker.
/// Without the reduction of weight gradients, which `reduction_plan` describes.
inline std::vector<Transfers> slow_transfers(const Schedule& schedule, const Costs& costs) {
  std::vector<Transfers> result(index(schedule.workers()));
  std::set<std::tuple<int, int, std::tuple<int, int, int>>> seen;
  for (const JobId id : schedule.order()) {
    const int worker = schedule.compute(id);
    for (const Input& input : inputs(schedule, costs, id)) {
      if (input.from == worker || !seen.emplace(worker, input.kind, input.what).second) continue;
      Transfers& here = result[index(worker)];
      Received* received = nullptr;
      switch (input.kind) {
        case Input::activation:
          received = &here.activations;
          break;
        case Input::stash:
        case Input::gradient_stash:
          received = &here.stashes;
          break;
        case Input::gradient:
          received = &here.gradients;
          break;
        case Input::weights:
          received = &here.weights;
          break;
      }
      ++received->count;
      received->bytes += input.bytes;
    }
    const Job j = schedule.job(id);
    const std::optional<int> peer = schedule.home(j.stage, j.microbatch).peer();
    if (j.pass != Pass::L && !(j.pass == Pass::O && peer)) continue;
    Transfers& to = result[index(j.pass == Pass::O ? *peer : worker)];
    Received& copied = peer ? to.stashes : to.reloads;
    ++copied.count;
    copied.bytes += costs.sizes[costs.sizes.size() == 1 ? 0 : index(j.stage)].stash;
  }
  return result;
}

struct SlowMemory {
  int stashes = 0;
  std::uint64_t bytes = 0;
};

/// The memory that `worker` holds while it runs job number `now` of `row`, its jobs in the order of the run.
inline SlowMemory slow_memory(const Schedule& schedule, const Costs& costs, const std::vector<JobId>& row,
                              int worker, int now) {
  const auto place = [&row](JobId id) {
    return static_cast<int>(std::find(row.begin(), row.end(), id) - row.begin());
  };
  SlowMemory result;
  for (int b = 0; b < schedule.microbatches(); ++b) {
    for (int s = 0; s < schedule.stages(); ++s) {
      const StageSizes& size = costs.sizes[costs.sizes.size() == 1 ? 0 : index(s)];
      const JobId f = maker_of(schedule, s, b);
      const JobId bw = schedule.backward(s, b);
      const JobId w = schedule.weight_gradient(s, b);
      const bool f_here = schedule.compute(f) == worker;
      const bool b_here = schedule.compute(bw) == worker;
      const bool w_here = schedule.compute(w) == worker;
      // B's part is held from B or, where B runs elsewhere, from W. A copy of F's part is held from its first
      // reader on.
      const auto live = [&](bool with_f) {
        int from = std::numeric_limits<int>::max();
        int to = -1;
        if (w_here) from = to = place(w);
        if (b_here) from = place(bw), to = w_here ? std::max(to, place(bw)) : place(bw);
        if (with_f && f_here) from = place(f), to = b_here || w_here ? to : place(f);
        return from <= now && now <= to;
      };
      if (live(true)) {
        ++result.stashes;
        result.bytes += size.stash;
      }
      if (schedule.split_backward(s, b) && live(false)) result.bytes += size.gradient_stash;
      // The output of F, where jobs that run here keep it as their input.
      int from = std::numeric_limits<int>::max();
      int to = -1;
      for (const int next : schedule.graph().succ(s)) {
        if (schedule.home(next, b) != Home::none) continue;
        for (const JobId reader : {schedule.forward(next, b), maker_of(schedule, next, b)}) {
          if (schedule.compute(reader) != worker) continue;
          from = std::min(from, place(reader));
          to = std::max(to, place(reader));
        }
      }
      if (from <= now && now <= to) result.bytes += size.activation;
    }
  }
  return result;
}

/// The memory that `worker` holds at `time`, at which no job of the run starts or ends. All passes of a stash
/// run on one worker.
inline SlowMemory slow_memory_at(const Schedule& schedule, const Costs& costs, const std::vector<Span>& spans,
                                 int worker, double time) {
  SlowMemory result;
  for (int b = 0; b < schedule.microbatches(); ++b) {
    for (int s = 0; s < schedule.stages(); ++s) {
      const StageSizes& size = costs.sizes[costs.sizes.size() == 1 ? 0 : index(s)];
      const auto runs = [&](JobId from, JobId to) {
        return spans[from].start < time && time < spans[to].end;
      };
      if (schedule.home(s, b).peer() == worker &&
          runs(*schedule.find({s, b, Pass::O}), *schedule.find({s, b, Pass::L}))) {
        ++result.stashes;
        result.bytes += size.stash;
      }
      if (schedule.compute(schedule.forward(s, b)) != worker) continue;
      const JobId b_job = schedule.backward(s, b);
      const JobId last = schedule.weight_gradient(s, b);
      const std::optional<JobId> o = schedule.find({s, b, Pass::O});
      const std::optional<JobId> l = schedule.find({s, b, Pass::L});
      const bool held =
          o ? runs(schedule.forward(s, b), *o) || runs(*l, last) : runs(maker_of(schedule, s, b), last);
      result.stashes += held ? 1 : 0;
      result.bytes += held ? size.stash : 0;
      if (last != b_job && runs(b_job, last)) result.bytes += size.gradient_stash;
    }
  }
  for (int b = 0; b < schedule.microbatches(); ++b) {
    for (int s = 0; s < schedule.stages(); ++s) {
      double from = std::numeric_limits<double>::infinity();
      double to = -from;
      for (const int next : schedule.graph().succ(s)) {
        if (schedule.home(next, b) != Home::none) continue;
        for (const JobId reader : {schedule.forward(next, b), maker_of(schedule, next, b)}) {
          if (schedule.compute(reader) != worker) continue;
          from = std::min(from, spans[reader].start);
          to = std::max(to, spans[reader].end);
        }
      }
      if (from < time && time < to)
        result.bytes += costs.sizes[costs.sizes.size() == 1 ? 0 : index(s)].activation;
    }
  }
  return result;
}

}  // namespace starpipe::plan::testing
