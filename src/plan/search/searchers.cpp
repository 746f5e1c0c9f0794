// SPDX-License-Identifier: Apache-2.0
#include "plan/search/searchers.hpp"

#include <algorithm>
#include <cmath>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "plan/search/lower_bound.hpp"
#include "plan/search/shift_pattern.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/homes_to_fit.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

/// Number of searchers, which run at the same time, each with its own random numbers. The number is
/// fixed so that the result does not depend on the machine.
constexpr int searchers = 2;
/// Jobs that list scheduling places in a second of work of one searcher. Cores of 2020 place about twice as
/// many.
constexpr double jobs_per_second = 7e6;

/// The best makespan so far and the share of the work that is done, for the progress line.
class Board {
 public:
  void makespan(double value) {
    const std::lock_guard lock(mutex_);
    if (makespan_ == 0 || value < makespan_) makespan_ = value;
  }
  void work(double share) {
    const std::lock_guard lock(mutex_);
    done_ += share;
  }
  [[nodiscard]] SearchProgress progress() const {
    const std::lock_guard lock(mutex_);
    return {.seconds = 0, .done = std::min(1.0, done_), .makespan = makespan_, .lower_bound = 0};
  }

 private:
  mutable std::mutex mutex_;
  double makespan_ = 0;
  double done_ = 0;
};

/// Returns the stashes that get no home (Instance::remade). The orders then keep the memory limits, and no
/// other choice computes fewer F again. The orders must keep the limits with some choice of homes.
std::vector<bool> fewest_remade(const Instance& instance, const Orders& orders) {
  std::vector<bool> remade(instance.jobs() / 3, false);
  std::vector<StashWait> waits(remade.size());
  for (int w = 0; w < instance.workers; ++w) {
    const std::vector<JobId>& order = orders[index(w)];
    std::vector<JobId> pairs;
    for (std::size_t i = 0; i < order.size(); ++i) {
      StashWait& wait = waits[order[i] / 3];
      if (Instance::pass_of(order[i]) == 0) pairs.push_back(order[i] / 3);
      (Instance::pass_of(order[i]) == 0   ? wait.forward
       : Instance::pass_of(order[i]) == 1 ? wait.backward
                                          : wait.last) = i;
    }
    std::vector<StashWait> here;
    for (const JobId pair : pairs) {
      here.push_back(waits[pair]);
      here.back().size = instance.stash[index(instance.stage_of(pair * 3))];
    }
    const auto dropped = dropped_to_fit(here, instance.limits_with_slack[index(w)]).value();
    for (std::size_t i = 0; i < pairs.size(); ++i) remade[pairs[i]] = dropped[i];
  }
  return remade;
}

/// Searches patterns first, then orders.
class Searcher {
 public:
  Searcher(const Instance& instance, bool homes, double seconds, double bound, std::uint64_t seed,
           SearchClock& clock, Board& board)
      : instance_(instance),
        homes_(homes),
        has_room_(has_room(instance)),
        anywhere_(with_homes(instance, std::vector<bool>(instance.remade.size(), !has_room_))),
        scheduler_(instance),
        random_(seed),
        rounds_(std::max(50.0, seconds * jobs_per_second / (instance.jobs() + 100))),
        good_enough_(bound * (1 + 1e-9)),
        clock_(clock),
        board_(board) {}

  BestOrders run(const std::vector<Orders>& seeds) {
    // Patterns and random orders know no slices.
    const bool has_slices = instance_.slices > 1;
    if (has_slices) {
      left_ = static_cast<long>(2 * rounds_);  // the work of patterns, too
    } else {
      search_patterns();
      improve(scheduler_.run(best_pattern_, true).orders);
    }
    for (const Orders& seed : seeds) improve(seed);
    // Small problems leave work: search around the best orders and from random orders in turn.
    for (int k = 0; left_ > 0 && best_.makespan > good_enough_ && !clock_.over(); ++k) {
      if (k % 2 == 1 && !has_slices) {
        improve(random_orders(anywhere_, random_));
      } else {
        improve(best_.orders, k == 0 ? 0 : random_.between(1, 20));
      }
    }
    return best_;
  }

 private:
  void search_patterns() {
    const auto samples = static_cast<long>(rounds_ * 0.2);
    const auto changes = static_cast<long>(rounds_ * 0.3);
    ShiftPattern pattern = serial_pattern(instance_);
    if (homes_)
      pattern.remade.assign(index(ceil_div(instance_.stages, instance_.workers)), has_room_ ? 0 : 1);
    double best = std::numeric_limits<double>::infinity();
    for (long i = 0; i < samples + changes; ++i) {
      const PatternRun& run = scheduler_.run(pattern);
      // Among equal makespans, prefers the pattern whose workers end earlier on average: a way off a plateau.
      const double value = run.makespan + 1e-4 * run.mean_end;
      if (run.feasible && value <= best) {
        best = value;
        best_pattern_ = pattern;
        board_.makespan(run.makespan);
        if (run.makespan <= good_enough_) break;
      }
      if (clock_.over()) break;
      if (i % 64 == 63) board_.work(64 * 0.5 / static_cast<double>(samples + changes) / searchers);
      if (i < samples) {
        pattern = random_pattern(instance_, random_, homes_);
      } else {
        pattern = best_pattern_;
        mutate(pattern, instance_, random_);
      }
    }
    left_ = static_cast<long>(rounds_);  // a move costs about half as much as a list schedule
  }

  void improve(const Orders& orders, int shaken = 0) {
    const Instance instance =
        with_homes(instance_, homes_ ? fewest_remade(instance_, orders) : instance_.remade);
    OrderSearch search(instance, orders);
    search.shake(shaken, random_);
    long seen = 0;
    left_ -= search.run(left_, good_enough_, random_, [&](long moves) {
      board_.makespan(search.makespan());
      board_.work(static_cast<double>(moves - seen) * 0.5 / rounds_ / searchers);
      seen = moves;
      return clock_.over();
    });
    board_.makespan(search.makespan());
    if (search.makespan() < best_.makespan) best_ = {search.makespan(), search.orders(), instance.remade};
  }

  // True if each worker has room for one stash of each of its stages.
  static bool has_room(const Instance& instance) {
    for (int w = 0; w < instance.workers; ++w) {
      if (!instance.fits(w, instance.min_memory(w))) return false;
    }
    return true;
  }

  const Instance& instance_;  // all stashes have homes
  bool homes_;                // some may have none
  bool has_room_;
  Instance anywhere_;  // without room, no stash has a home: random orders then always end
  PatternScheduler scheduler_;
  Random random_;
  double rounds_;  // number of list schedules that the work allows
  double good_enough_;
  SearchClock& clock_;
  Board& board_;
  ShiftPattern best_pattern_;
  BestOrders best_;
  long left_ = 0;  // moves that the work still allows
};

/// Returns the orders of all registered schedules that fit, best first. Stops when the time is over.
std::vector<Orders> registered(const Instance& instance, const SearchProblem& problem, SearchClock& clock,
                               Starts& starts) {
  std::vector<BestOrders> found;
  for (const ScheduleEntry& entry : schedule_entries()) {
    std::string& reason =
        starts.try_emplace(entry.name, "the budget was over before it was tried").first->second;
    if (clock.over_or_stopped()) continue;
    std::string misfit;
    ScheduleRequest request{.workers = problem.workers,
                            .microbatches = problem.microbatches / problem.slices,
                            .slices = problem.slices,
                            .graph = StageGraph::chain(instance.stages),
                            .costs = problem.costs};
    for (const bool placed : {false, true}) {
      if (placed) request.stage_workers = problem.stage_workers;
      try {
        const auto orders = from_schedule(instance, make_schedule(entry.name, request), problem.costs);
        if (!orders) {
          misfit = "it places jobs in another way than the search, or exceeds the memory limit";
          continue;
        }
        reason.clear();
        misfit.clear();
        found.push_back({OrderSearch(instance, *orders).makespan(), *orders, instance.remade});
        break;
      } catch (const InputError& error) {  // the schedule does not support this request
        if (!placed || misfit.empty()) misfit = error.what();
      }
    }
    if (!reason.empty() && !misfit.empty()) reason = misfit;
  }
  std::ranges::stable_sort(found, {}, &BestOrders::makespan);
  std::vector<Orders> orders;
  orders.reserve(found.size());
  for (BestOrders& one : found) orders.push_back(std::move(one.orders));
  return orders;
}

/// Returns orders in which each sequence ends before the next one begins: they need the least memory.
Orders one_sequence_at_a_time(const Instance& instance) {
  Orders orders(index(instance.workers));
  const auto add = [&](int pass, int stage, int microbatch) {
    orders[index(instance.worker_of[index(stage)])].push_back(instance.job(pass, stage, microbatch));
  };
  for (int first = 0; first < instance.microbatches; first += instance.slices) {
    for (int b = first; b < first + instance.slices; ++b) {
      for (int s = 0; s < instance.stages; ++s) add(0, s, b);
    }
    for (int b = first + instance.slices; b-- > first;) {
      for (int s = instance.stages; s-- > 0;) {
        add(1, s, b);
        add(2, s, b);
      }
    }
  }
  return orders;
}

}  // namespace

Instance with_homes(Instance instance, const std::vector<bool>& remade) {
  instance.remade = remade;
  return instance;
}

BestOrders search_variant(const Variant& variant, double seconds, SearchClock& clock,
                          const SearchOptions& options, Starts& starts) {
  const Instance instance(variant.problem);
  std::vector<Orders> seeds = registered(instance, variant.problem, clock, starts);
  if (instance.slices > 1 && seeds.empty()) seeds.push_back(one_sequence_at_a_time(instance));
  Board board;
  std::vector<std::future<BestOrders>> running;
  for (int searcher = 0; searcher < searchers; ++searcher) {
    // Searcher c starts from its own patterns, if there are no slices, and from the c-th best registered
    // schedule.
    std::vector<Orders> own;
    if (index(searcher) < seeds.size()) own.push_back(seeds[index(searcher)]);
    if (own.empty() && instance.slices > 1) own.push_back(seeds.front());
    running.push_back(std::async(std::launch::async, [&, searcher, own = std::move(own)] {
      return Searcher(instance, variant.problem.may_recompute, seconds, variant.bound,
                      options.seed * searchers + index(searcher), clock, board)
          .run(own);
    }));
  }
  BestOrders best;
  const auto consider = [&](BestOrders found) {
    if (variant.problem.costs.links.shared())
      found.makespan = simulated_makespan(to_schedule(with_homes(instance, found.remade), found.orders),
                                          variant.problem.costs);
    if (found.makespan < best.makespan) best = std::move(found);
  };
  for (auto& searcher : running) {
    for (int waits = 1; searcher.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready;
         ++waits) {
      clock.over_or_stopped();
      if (waits % 10 != 0) continue;
      SearchProgress progress = board.progress();
      progress.seconds = clock.seconds();
      progress.lower_bound = bound_of_makespan(variant.bound, progress.makespan);
      if (options.progress && progress.makespan > 0) options.progress(progress);
    }
    consider(searcher.get());
  }
  // The searchers know of no delays on shared links, so they may have made a good start worse.
  for (std::size_t i = 0; variant.problem.costs.links.shared() && i < seeds.size(); ++i)
    consider({.orders = seeds[i], .remade = instance.remade});
  return best;
}

}  // namespace starpipe::plan
