// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/schedule.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"

namespace starpipe::plan {
namespace {

void check_memory_limits(const std::string& name, int workers, const std::vector<int>& limits) {
  if (limits.empty() || limits.size() == index(workers)) return;
  throw InputError(fmt::format("{}: {} memory limits for {} workers", name, limits.size(), workers));
}

void require_ordered_for_pairs(const std::string& name, Discipline discipline) {
  if (discipline == Discipline::ordered) return;
  throw InputError(
      fmt::format("{}: pairs need an ordered schedule; this one is {}", name, to_string(discipline)));
}

}  // namespace

std::string_view to_string(Discipline discipline) { return discipline_words[index(discipline)]; }

Discipline parse_discipline(std::string_view word) {
  for (const auto discipline : {Discipline::greedy, Discipline::bounded, Discipline::ordered}) {
    if (word == to_string(discipline)) return discipline;
  }
  throw InputError(fmt::format("unknown discipline '{}' (greedy, bounded or ordered)", word));
}

std::vector<Schedule::Passes> Schedule::passes_of(const ScheduleSpec& spec) {
  std::vector<Passes> passes(index(spec.graph.size()) * index(spec.microbatches));
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const int stage = static_cast<int>(i % index(spec.graph.size()));
    const int microbatch = static_cast<int>(i / index(spec.graph.size()));
    if (spec.split_backward) passes[i].split = spec.split_backward(stage, microbatch);
    if (!spec.home) continue;
    Home& home = passes[i].home = spec.home(stage, microbatch);
    if (home.peer() && spec.placement({stage, microbatch, Pass::F}).compute == *home.peer())
      home = Home::worker;
  }
  return passes;
}

Schedule::Schedule(const ScheduleSpec& spec, bool forward_only)
    : name_(spec.name),
      graph_(spec.graph),
      microbatches_(spec.microbatches),
      slices_(spec.slices),
      workers_(spec.workers),
      late_recomputation_(spec.late_recomputation),
      discipline_(spec.discipline),
      memory_limits_(spec.memory_limits) {
  if (microbatches_ < 1)
    throw InputError(fmt::format("{}: {} micro-batches, need at least 1", name_, microbatches_));
  if (slices_ < 1 || microbatches_ % slices_ != 0)
    throw InputError(
        fmt::format("{}: {} micro-batches are not sequences of {} slices", name_, microbatches_, slices_));
  if (workers_ < 1) throw InputError(fmt::format("{}: {} workers, need at least 1", name_, workers_));
  if (spec.pairs) require_ordered_for_pairs(name_, discipline_);
  if (!spec.placement || !spec.priority) throw InputError(name_ + ": a schedule needs w and n");
  check_memory_limits(name_, workers_, memory_limits_);

  const auto require_numbers = [&](int jobs_each) {
    const std::uint64_t ids = std::uint64_t{index(stages())} * index(microbatches_) * index(jobs_each);
    if (ids >= no_turn) {
      throw InputError(
          fmt::format("{}: {} stages x {} micro-batches are too many jobs", name_, stages(), microbatches_));
    }
  };
  require_numbers(forward_only ? 1 : 2);  // before a table of them takes memory and time
  const std::vector<Passes> passes = passes_of(spec);
  const auto is_elsewhere = [](const Passes& of) { return of.home != Home::worker; };
  if (slices_ > 1 && std::ranges::any_of(passes, is_elsewhere))
    throw InputError(name_ + ": stashes of slices wait with their workers; other homes do not apply");
  if (forward_only) {
    stride_ = 1;
  } else {
    has_w_ = std::ranges::any_of(passes, &Passes::split);
    const auto is_remade = [](const Passes& of) { return of.home == Home::none; };
    has_r_ = std::ranges::any_of(passes, is_remade);
    recomputes_all_ = std::ranges::all_of(passes, is_remade);
    has_copies_ = std::ranges::any_of(passes, [](const Passes& of) { return is_copied(of.home); });
    has_peers_ = std::ranges::any_of(passes, [](const Passes& of) { return of.home.peer().has_value(); });
    stride_ = 2 + (has_w_ ? 1 : 0) + (has_copies_ ? 2 : has_r_ ? 1 : 0);
  }
  require_numbers(stride_);

  const auto tables = std::make_shared<Tables>(make_tables(spec, passes));
  tables_ = tables;
  has_pairs_ = !tables->partner.empty();
  if (has_copies_) order_copies(*tables);
}

Schedule::Tables Schedule::make_tables(const ScheduleSpec& spec, std::span<const Passes> passes) const {
  const std::size_t ids = passes.size() * index(stride_);
  Tables tables;
  tables.turn.assign(ids, no_turn);
  tables.position.assign(ids, 0);
  tables.placement.assign(ids, Placement{});
  std::vector<std::int64_t> priority(ids);
  const auto add = [&](JobId id, const Job& job) {
    // A copy runs beside the job whose stash it takes or brings.
    const auto beside = forward(job.stage, job.microbatch) + (job.pass == Pass::L ? 1 : 0);
    tables.placement[id] = is_copy(job.pass) ? tables.placement[beside] : spec.placement(job);
    priority[id] = spec.priority(job);
    tables.order.push_back(id);
  };
  if (has_r_ || has_copies_) {
    for (const Passes& of : passes) tables.homes.push_back(of.home);
  }
  for (int b = 0; b < microbatches_; ++b) {
    for (int s = 0; s < stages(); ++s) {
      const JobId first = forward(s, b);
      const auto [is_split, home] = passes[pair(s, b)];
      const Pass backward = is_split ? Pass::B : Pass::BW;
      add(first, {s, b, Pass::F});
      if (forward_only()) continue;
      if (is_copied(home)) {
        tables.placement[first + 1] = spec.placement({s, b, backward});
        add(offload(s, b), {s, b, Pass::O});
        add(reload(s, b), {s, b, Pass::L});
      }
      if (home == Home::none) add(recomputation(s, b), {s, b, Pass::R});
      add(first + 1, {s, b, backward});
      if (is_split) add(first + 2, {s, b, Pass::W});
    }
  }
  tables.order.shrink_to_fit();
  // They are in the documented order of jobs with equal n.
  const auto stride = static_cast<JobId>(stride_);
  std::ranges::stable_sort(tables.order, {},
                           [&](JobId id) { return std::pair(priority[id], spec.pairs && id % stride != 0); });
  if (spec.pairs && !forward_only()) find_pairs(priority, tables);
  tables.rows.resize(index(workers_));
  tables.copies.resize(has_copies_ ? index(workers_) : 0);
  std::vector<bool> seen(index(microbatches_), false);
  for (std::uint32_t t = 0; t < tables.order.size(); ++t) {
    const JobId id = tables.order[t];
    tables.turn[id] = t;
    const auto microbatch = static_cast<int>(id / stride / static_cast<JobId>(stages()));
    if (id % stride == 0 && !seen[index(microbatch)]) {  // its first F
      seen[index(microbatch)] = true;
      tables.by_age.push_back(microbatch);
    }
    const int worker = tables.placement[id].compute;
    if (worker < 0 || worker >= workers_) continue;  // `check` reports it
    if (has_copies_ && id % stride >= remade_or_offloaded() && is_copied(tables.homes[id / stride])) {
      tables.copies[index(worker)].push_back(id);
      const std::optional<int> peer = tables.homes[id / stride].peer();
      if (peer && *peer < workers_) tables.copies[index(*peer)].push_back(id);
      continue;
    }
    std::vector<JobId>& row = tables.rows[index(worker)];
    tables.position[id] = static_cast<std::uint32_t>(row.size());
    row.push_back(id);
  }
  return tables;
}

// Fills `partner`, and puts the backward pass of each pair directly behind its F in the order of all jobs.
void Schedule::find_pairs(std::span<const std::int64_t> priority, Tables& tables) const {
  const auto stride = static_cast<JobId>(stride_);
  std::vector<JobId> partner(tables.turn.size(), no_job);
  std::vector<JobId> last(index(workers_), no_job);
  bool any = false;
  for (const JobId id : tables.order) {
    const bool copies_stash =
        has_copies_ && id % stride >= remade_or_offloaded() && is_copied(tables.homes[id / stride]);
    const int worker = tables.placement[id].compute;
    if (copies_stash || worker < 0 || worker >= workers_)
      continue;  // `check` reports a worker that does not exist
    const JobId before = std::exchange(last[index(worker)], id);
    if (before == no_job || before % stride != 0 || id % stride != 1 || priority[before] != priority[id])
      continue;
    partner[before] = id;
    partner[id] = before;
    any = true;
  }
  if (!any) return;
  std::vector<JobId> order;
  order.reserve(tables.order.size());
  for (const JobId id : tables.order) {
    const bool is_second = id % stride != 0 && partner[id] != no_job;
    if (is_second) continue;
    order.push_back(id);
    if (partner[id] != no_job) order.push_back(partner[id]);
  }
  tables.order = std::move(order);
  tables.partner = std::move(partner);
}

// Fills `waits_for` and `waited_for`. What a job waits for because an earlier job of its channel does is left
// out.
void Schedule::order_copies(Tables& tables) const {
  constexpr FewJobs none{no_job, no_job, no_job, no_job};
  tables.waits_for.assign(tables.turn.size(), none);
  tables.waited_for.assign(tables.turn.size(), none);
  const auto wait_for = [&](JobId id, JobId& other) {
    if (other == no_job) return;
    add(tables.waits_for[id], other);
    add(tables.waited_for[other], id);
    other = no_job;
  };
  for (int worker = 0; worker < workers_; ++worker) {
    JobId last_out = no_job;  // of the channel
    JobId last_in = no_job;
    // The last jobs that free memory, as long as no job of the channel waits for them: copies out for passes
    // and for copies in, and W or BW for copies in.
    JobId out_for_pass = no_job;
    JobId out_for_in = no_job;
    JobId w_for_in = no_job;
    for (const JobId id : order_with_copies(worker)) {
      const auto [s, b, pass] = job(id);
      if (is_copy(pass) && channel(id, worker) == Channel::out) {
        wait_for(id, last_out);
        last_out = out_for_pass = out_for_in = id;
      } else if (is_copy(pass)) {
        wait_for(id, last_in);
        if (out_for_in == offload(s, b)) out_for_in = no_job;  // L waits for its own O anyway
        wait_for(id, out_for_in);
        wait_for(id, w_for_in);
        last_in = id;
      } else if (pass == Pass::R || (pass == Pass::F && home(s, b) != Home::none)) {
        wait_for(id, out_for_pass);
      } else if (gives_weight_gradient(pass)) {
        w_for_in = id;
      }
    }
  }
}

bool operator==(const Schedule& a, const Schedule& b) {
  return a.name_ == b.name_ && a.graph_ == b.graph_ && a.microbatches_ == b.microbatches_ &&
         a.slices_ == b.slices_ && a.workers_ == b.workers_ && a.stride_ == b.stride_ &&
         a.has_w_ == b.has_w_ && a.discipline_ == b.discipline_ &&
         a.recomputes_late() == b.recomputes_late() && a.has_pairs_ == b.has_pairs_ &&
         a.memory_limits_ == b.memory_limits_ && (a.tables_ == b.tables_ || *a.tables_ == *b.tables_);
}

bool Schedule::split_backward(int stage, int microbatch) const {
  return has_w_ && exists(forward(stage, microbatch) + 2);
}

Schedule Schedule::with(Discipline discipline, std::vector<int> memory_limits) const {
  check_memory_limits(name_, workers_, memory_limits);
  Schedule changed = *this;
  changed.discipline_ = discipline;
  changed.has_pairs_ = has_pairs_ && discipline == Discipline::ordered;
  changed.memory_limits_ = std::move(memory_limits);
  return changed;
}

ScheduleSpec Schedule::spec() const {
  return {.name = name_,
          .graph = graph_,
          .microbatches = microbatches_,
          .slices = slices_,
          .workers = workers_,
          .split_backward = [this](int stage, int microbatch) { return split_backward(stage, microbatch); },
          .placement = [this](const Job& job) { return placement(*find(job)); },
          .priority = [this](const Job& job) { return std::int64_t{turn(first_of_pair(*find(job)))}; },
          .discipline = discipline_,
          .memory_limits = memory_limits_,
          .home = [this](int stage, int microbatch) { return home(stage, microbatch); },
          .late_recomputation = late_recomputation_,
          .pairs = has_pairs_};
}

Schedule Schedule::without_pairs() const {
  Schedule changed = *this;
  changed.has_pairs_ = false;
  return changed;
}

Schedule Schedule::ordered_by(std::span<const std::int64_t> priorities) const {
  ScheduleSpec ordered = spec();
  ordered.priority = [&](const Job& job) { return priorities[first_of_pair(*find(job))]; };
  ordered.discipline = Discipline::ordered;
  ordered.late_recomputation = recomputes_late();
  return Schedule(ordered);
}

// The start of each job, by JobId, if F, B, W and R take 1, BW takes 2, and copies no time.
std::vector<std::int64_t> Schedule::starts_of_equal_passes() const {
  std::vector<std::int64_t> starts(id_count(), 0);
  std::vector<std::int64_t> worker_free(index(workers_), 0);
  const auto end_of = [&](JobId id) {
    const Pass pass = job(id).pass;
    return starts[id] + (is_copy(pass) ? 0 : pass == Pass::BW ? 2 : 1);
  };
  for (const JobId id : topological_order(*this)) {
    for_each_pred(id, [&](JobId before) { starts[id] = std::max(starts[id], end_of(before)); });
    if (is_copy(job(id).pass)) continue;
    std::int64_t& free = worker_free[index(compute(id))];
    starts[id] = std::max(starts[id], free);
    free = end_of(id);
  }
  return starts;
}

Schedule Schedule::with_homes(const std::function<Home(int stage, int microbatch)>& home) const {
  if (forward_only()) return *this;
  ScheduleSpec changed = spec();
  changed.home = home;
  std::vector<std::int64_t> places(tables_->turn.begin(), tables_->turn.end());
  for (const JobId id : order()) places[id] = places[first_of_pair(id)];
  const std::vector<Passes> passes = passes_of(changed);
  bool has_new_peer = false;
  for (std::size_t pair = 0; pair < passes.size(); ++pair) {
    const bool is_new = tables_->homes.empty() || tables_->homes[pair] != passes[pair].home;
    has_new_peer = has_new_peer || (is_new && passes[pair].home.peer());
  }
  if (has_new_peer) {
    const std::vector<std::int64_t> starts = starts_of_equal_passes();
    std::vector<JobId> by_start(order().begin(), order().end());
    std::ranges::stable_sort(by_start, {}, [&](JobId id) { return starts[id]; });
    for (std::size_t i = 0; i < by_start.size(); ++i) places[by_start[i]] = static_cast<std::int64_t>(i);
  }
  // A new R has the place of B, and comes before it. Between two places there is room for a new L, for the
  // jobs of the place, and for a new O.
  enum Part : std::uint8_t { new_l, jobs, new_o, parts };
  const auto at = [&](JobId id, Part part) { return parts * places[id] + part; };
  const auto new_copy = [&](const Job& job) {
    const JobId f = forward(job.stage, job.microbatch);
    const JobId b = backward(job.stage, job.microbatch);
    const auto row = order(compute(f));
    const std::size_t first = position(last_of_pair(f));
    const std::size_t last = position(first_of_pair(b));
    const bool on_one = compute(f) == compute(b);
    if (job.pass == Pass::O) return at(on_one && first + 1 < last ? row[first + 1] : f, new_o);
    return at(on_one && first + 2 < last ? row[last - 1] : b, new_l);
  };
  changed.placement = [this](const Job& job) {
    const std::optional<JobId> id = find(job);
    return placement(id ? *id : backward(job.stage, job.microbatch));
  };
  changed.priority = [&](const Job& job) {
    if (const std::optional<JobId> id = find(job)) return at(*id, jobs);
    if (is_copy(job.pass)) return new_copy(job);
    const JobId b = backward(job.stage, job.microbatch);
    return at(b, partner(b) ? new_l : jobs);  // nothing lies between the jobs of a pair
  };
  return Schedule(changed);
}

Schedule Schedule::with_homes(std::span<const Home> homes) const {
  if (homes.empty()) return *this;
  if (homes.size() != 1 && homes.size() != index(stages())) {
    throw InputError(fmt::format("{}: {} homes for {} stages; give one for all, or one for each", name_,
                                 homes.size(), stages()));
  }
  return with_homes([homes](int stage, int) { return homes[homes.size() == 1 ? 0 : index(stage)]; });
}

Schedule Schedule::with_recomputation() const {
  return with_homes([](int, int) { return Home::none; });
}

std::optional<JobId> Schedule::find(const Job& wanted) const {
  if (wanted.stage < 0 || wanted.stage >= stages() || wanted.microbatch < 0 ||
      wanted.microbatch >= microbatches_) {
    return std::nullopt;
  }
  JobId id = forward(wanted.stage, wanted.microbatch);
  if (forward_only()) return wanted.pass == Pass::F ? std::optional(id) : std::nullopt;
  if (wanted.pass == Pass::W) id = weight_gradient(wanted.stage, wanted.microbatch);
  if (gives_input_gradient(wanted.pass)) id = backward(wanted.stage, wanted.microbatch);
  const Home waits = home(wanted.stage, wanted.microbatch);
  if (wanted.pass == Pass::R && waits == Home::none) id = recomputation(wanted.stage, wanted.microbatch);
  if (wanted.pass == Pass::O && is_copied(waits)) id = offload(wanted.stage, wanted.microbatch);
  if (wanted.pass == Pass::L && is_copied(waits)) id = reload(wanted.stage, wanted.microbatch);
  if (job(id) != wanted || !exists(id)) return std::nullopt;
  return id;
}

std::span<const JobId> Schedule::order(int worker) const {
  if (worker < 0 || worker >= workers_) return {};
  return tables_->rows[index(worker)];
}

std::span<const JobId> Schedule::copies_of(int worker) const {
  if (!has_copies_ || worker < 0 || worker >= workers_) return {};
  return tables_->copies[index(worker)];
}

std::vector<JobId> Schedule::copies_of(int worker, Channel wanted) const {
  std::vector<JobId> copies;
  std::ranges::copy_if(copies_of(worker), std::back_inserter(copies),
                       [&](JobId id) { return channel(id, worker) == wanted; });
  return copies;
}

std::pair<int, int> Schedule::ends(JobId copy) const {
  const int own = compute(copy);
  const int other = peer(copy).value_or(own);
  return job(copy).pass == Pass::O ? std::pair(own, other) : std::pair(other, own);
}

std::vector<JobId> Schedule::order_with_copies(int worker) const {
  const auto row = order(worker);
  const auto copied = copies_of(worker);
  std::vector<JobId> all;
  all.reserve(row.size() + copied.size());
  std::ranges::merge(
      row, copied, std::back_inserter(all), {}, [this](JobId id) { return turn(id); },
      [this](JobId id) { return turn(id); });
  return all;
}

int Schedule::pred_count(JobId id) const {
  int count = 0;
  for_each_pred(id, [&count](JobId) { ++count; });
  return count;
}

std::string microbatches_text(const Schedule& schedule) {
  const int whole = schedule.whole_microbatches();
  if (schedule.slices() == 1) return fmt::format("{} micro-batches", whole);
  return fmt::format("{} micro-batches of {} slices", whole, schedule.slices());
}

// A topological order of all jobs, restricted to forward passes, keeps the order of each worker and puts
// every job after its producers. So the new order has no cycle, and neither have successive rounds.
Schedule forward_passes(const Schedule& schedule, int microbatches) {
  std::vector<std::int64_t> place(schedule.id_count(), 0);
  std::int64_t next = 0;
  for (const JobId id : topological_order(schedule)) place[id] = next++;
  const auto of_round = [&](const Job& job) {
    return schedule.forward(job.stage, job.microbatch % schedule.microbatches());
  };
  ScheduleSpec spec = schedule.spec();
  spec.microbatches = microbatches;
  spec.split_backward = {};
  spec.placement = [&](const Job& job) { return schedule.placement(of_round(job)); };
  spec.priority = [&](const Job& job) {
    return job.microbatch / schedule.microbatches() * next + place[of_round(job)];
  };
  if (schedule.discipline() != Discipline::ordered) spec.discipline = Discipline::greedy;
  spec.memory_limits = {};
  spec.home = {};
  spec.pairs = false;
  return {spec, true};
}

}  // namespace starpipe::plan
