// SPDX-License-Identifier: Apache-2.0
#include "plan/search/instance.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/interval.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

void check(const SearchProblem& problem) {
  const std::size_t stages = problem.stage_workers.size();
  const Costs& costs = problem.costs;
  require_input(problem.workers >= 1, "search", "needs at least 1 worker");
  require_input(problem.microbatches >= 1, "search", "needs at least 1 micro-batch");
  require_input(
      problem.slices >= 1 && problem.microbatches % problem.slices == 0, "search",
      fmt::format("{} micro-batches are not sequences of {} slices", problem.microbatches, problem.slices));
  require_input(problem.slices == 1 || problem.keeps_all(), "search",
                "stashes of slices wait with their workers; other homes do not apply");
  require_input(costs.slices == 1 || costs.slices == problem.slices, "search",
                fmt::format("costs of {} slices, the schedule has {}", costs.slices, problem.slices));
  require_input(!costs.overlap, "search", "orders with pairs are not searched (overlap)");
  const auto one_an_entry = [&](std::size_t count, int slices, std::string_view what) {
    const std::size_t all = stages * index(slices);
    require_input(count == 1 || count == all, "search",
                  fmt::format("{} must have one entry or {}, one per stage{}, not {}", what, all,
                              slices == 1 ? "" : " and slice", count));
  };
  one_an_entry(costs.durations.size(), costs.slices, "durations");
  one_an_entry(costs.sizes.size(), costs.slices, "sizes");
  one_an_entry(problem.stash.size(), problem.slices, "stash sizes");
  for (const Durations& d : costs.durations) {
    require_input(
        finite_amounts.contains(d.F) && finite_amounts.contains(d.B) && finite_amounts.contains(d.W),
        "search",
        fmt::format("durations must be {} (F={}, B={}, W={})", finite_amounts.text(), d.F, d.B, d.W));
  }
  require_input(costs.prefetch, "search", "transfers must overlap compute (prefetch)");
  for (const double size : problem.stash) {
    require_input(finite_amounts.contains(size), "search",
                  fmt::format("the size of a stash must be {}, not {}", finite_amounts.text(), size));
  }
  const std::size_t limits = problem.memory_limits.size();
  require_input(limits == 1 || limits == index(problem.workers), "search",
                fmt::format("{} memory limits for {} workers; give one for all, or one for each", limits,
                            problem.workers));
  for (const double limit : problem.memory_limits) {
    require_input(limit > 0, "search", fmt::format("the memory limit must be positive, not {}", limit));
  }
  std::vector<bool> used(index(problem.workers), false);
  for (const int worker : problem.stage_workers) {
    require_input(worker >= 0 && worker < problem.workers, "search",
                  fmt::format("worker {} does not exist", worker));
    used[index(worker)] = true;
  }
  require_input(std::ranges::find(used, false) == used.end(), "search", "a worker has no stage");
}

/// Returns the fastest link of copies: it has the smallest latency and the largest bandwidth of those to the
/// homes that the problem allows.
HomeLink fastest_copies(const SearchProblem& problem) {
  if (!problem.peers) return problem.costs.home_link(*problem.copies);
  require_input(problem.costs.peer.has_value(), "search",
                "the time of a copy to another worker is not known (--copy peer=T)");
  HomeLink fastest{.link = problem.costs.peer->link};
  if (!problem.copies) return fastest;
  const Link& other = problem.costs.home_link(*problem.copies).link;
  fastest.link = {.alpha = std::min(fastest.link.alpha, other.alpha),
                  .beta = std::min(fastest.link.beta, other.beta)};
  return fastest;
}

}  // namespace

Instance::Instance(const SearchProblem& problem)
    : workers(problem.workers),
      microbatches(problem.microbatches),
      slices(problem.slices),
      stages(static_cast<int>(problem.stage_workers.size())),
      worker_of(problem.stage_workers) {
  check(problem);
  limits = problem.memory_limits;
  limits.resize(index(workers), limits.front());
  for (const double limit : limits) limits_with_slack.push_back(limit * (1 + 1e-9));
  for (JobId id = 0; id < jobs(); ++id) stage_of_job.push_back(static_cast<int>(id) / 3 % stages);
  remade.assign(jobs() / 3, false);
  stages_of.resize(index(workers));
  const Costs& costs = problem.costs;
  for (int s = 0; s < stages; ++s) stages_of[index(worker_of[index(s)])].push_back(s);
  for (int entry = 0; entry < stages * slices; ++entry) {
    const int s = entry / slices;
    const int slice = entry % slices;
    const Durations& d = costs.duration(s, slice);
    time[0].push_back(d.F);
    remaking.push_back(d.F * problem.remaking);
    time[1].push_back(d.B);
    time[2].push_back(d.W);
    stash.push_back(problem.stash.size() == 1 ? problem.stash.front() : problem.stash[index(entry)]);
    const int here = worker_of[index(s)];
    const int next = s + 1 < stages ? worker_of[index(s + 1)] : here;
    const auto lag = [&](std::uint64_t bytes) {
      return here == next ? 0.0 : costs.link(here, next).time(bytes);
    };
    forward_lag.push_back(lag(costs.size(s, slice).activation));
    backward_lag.push_back(lag(costs.size(s, slice).gradient));
  }
  if (problem.may_copy()) {
    const HomeLink home = fastest_copies(problem);
    link_workers = home.workers;
    for (int s = 0; s < stages; ++s) {
      copy_time.push_back(home.link.time(costs.size(s).stash));
      copy_passing.push_back(home.workers > 1 ? copy_time.back() - home.link.alpha : 0);
    }
  }
  // R waits for its own F, which ends before F and B of the next stage run.
  head_start.assign(time[0].size(), 0);
  for (std::size_t s = 0; slices == 1 && s + 1 < index(stages); ++s) {
    head_start[s] = std::min(remaking[s], forward_lag[s] + time[0][s + 1] + time[1][s + 1] + backward_lag[s]);
  }
}

double Instance::min_memory(int worker) const {
  double sum = 0;
  for (const int s : stages_of[index(worker)]) {
    for (int slice = 0; slice < slices; ++slice) sum += stash[index(s * slices + slice)];
  }
  return sum;
}

double Instance::largest_stash(int worker) const {
  double largest = 0;
  for (const int s : stages_of[index(worker)]) {
    for (int slice = 0; slice < slices; ++slice)
      largest = std::max(largest, stash[index(s * slices + slice)]);
  }
  return largest;
}

std::vector<double> Instance::peak_memory(const Orders& orders) const {
  std::vector<double> peaks;
  for (const auto& order : orders) {
    double live = 0;
    double peak = 0;
    for (const JobId id : order) {
      live += memory_change(id);
      peak = std::max(peak, live);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

Schedule to_schedule(const Instance& instance, const Orders& orders) {
  std::vector<std::int64_t> position(instance.jobs());
  for (const auto& order : orders) {
    for (std::size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<std::int64_t>(i);
  }
  std::vector<int> limits;
  const bool equal =
      std::ranges::adjacent_find(instance.stash, std::not_equal_to<>()) == instance.stash.end();
  const bool limited =
      std::ranges::any_of(instance.limits, [](double limit) { return std::isfinite(limit); });
  for (std::size_t w = 0; equal && limited && instance.stash.front() > 0 && w < instance.limits.size(); ++w) {
    const double stashes = instance.limits_with_slack[w] / instance.stash.front();
    limits.push_back(static_cast<int>(std::min(stashes, 1e9)));
  }
  return Schedule({.name = "search",
                   .graph = StageGraph::chain(instance.stages),
                   .microbatches = instance.microbatches,
                   .slices = instance.slices,
                   .workers = instance.workers,
                   .split_backward = [](int, int) { return true; },
                   .placement =
                       [&](const Job& job) {
                         const int worker = instance.worker_of[index(job.stage)];
                         return Placement{.weights = worker, .compute = worker};
                       },
                   .priority =
                       [&](const Job& job) {
                         // R has the place of B, and of two jobs in one place R is the first.
                         const int pass = job.pass == Pass::F ? 0 : job.pass == Pass::W ? 2 : 1;
                         return position[instance.job(pass, job.stage, job.microbatch)];
                       },
                   .memory_limits = std::move(limits),
                   .home =
                       [&](int stage, int microbatch) {
                         return instance.recomputes(instance.job(0, stage, microbatch)) ? Home::none
                                                                                        : Home::worker;
                       }});
}

std::optional<Orders> from_schedule(const Instance& instance, const Schedule& schedule, const Costs& costs) {
  const bool same_size = schedule.graph() == StageGraph::chain(instance.stages) &&
                         schedule.microbatches() == instance.microbatches &&
                         schedule.slices() == instance.slices && schedule.workers() == instance.workers;
  if (!same_size || schedule.recomputes()) return std::nullopt;
  for (const JobId id : schedule.order()) {
    const int worker = instance.worker_of[index(schedule.job(id).stage)];
    if (schedule.placement(id) != Placement{.weights = worker, .compute = worker}) return std::nullopt;
  }
  Orders orders;
  const Schedule simulated = ordered_as_simulated(schedule, costs);
  for (int w = 0; w < instance.workers; ++w) {
    auto& order = orders.emplace_back();
    for (const JobId id : simulated.order(w)) {
      const Job job = schedule.job(id);
      const auto add = [&](int pass) { order.push_back(instance.job(pass, job.stage, job.microbatch)); };
      if (job.pass == Pass::F) add(0);
      if (job.pass == Pass::B || job.pass == Pass::BW) add(1);
      if (job.pass == Pass::W || job.pass == Pass::BW) add(2);
    }
  }
  const std::vector<double> peaks = instance.peak_memory(orders);
  for (int w = 0; w < instance.workers; ++w) {
    if (!instance.fits(w, peaks[index(w)])) return std::nullopt;
  }
  return orders;
}

std::string_view to_string(Layout layout) { return layout_words[index(layout)]; }

Layout parse_layout(std::string_view word) {
  for (const Layout layout : {Layout::loop, Layout::v}) {
    if (word == to_string(layout)) return layout;
  }
  throw InputError(fmt::format("unknown layout '{}' (v or loop)", word));
}

std::vector<int> layout_workers(Layout layout, int workers, int chunks) {
  std::vector<int> worker_of;
  for (int c = 0; c < chunks; ++c) {
    for (int i = 0; i < workers; ++i) {
      worker_of.push_back(layout == Layout::v && c % 2 == 1 ? workers - 1 - i : i);
    }
  }
  return worker_of;
}

}  // namespace starpipe::plan
