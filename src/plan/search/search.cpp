// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/search.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "plan/search/instance.hpp"
#include "plan/search/lower_bound.hpp"
#include "plan/search/order_search.hpp"
#include "plan/search/shift_pattern.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
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
constexpr int max_chunks = 4;  // considered when none are given

/// The time limit, shared by the searchers.
class Clock {
 public:
  explicit Clock(const SearchOptions& options)
      : budget_(options.budget), stop_(options.stop), start_(std::chrono::steady_clock::now()) {}
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  /// True if the budget is spent. Once true, it stays true.
  bool over() {
    if (!over_ && seconds() > budget_) over_ = true;
    return over_;
  }
  /// Returns the same, after it has asked SearchOptions::stop: for the thread that called `search`.
  bool over_or_stopped() {
    if (!over_ && stop_ && stop_()) over_ = true;
    return over();
  }
  [[nodiscard]] bool was_over() const { return over_; }

 private:
  double budget_;
  const std::function<bool()>& stop_;
  std::chrono::steady_clock::time_point start_;
  std::atomic<bool> over_ = false;
};

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

/// The best orders of a search, and which stashes have no home.
struct BestOrders {
  double makespan = std::numeric_limits<double>::infinity();
  Orders orders;
  std::vector<bool> remade;
};

Instance with_homes(Instance instance, const std::vector<bool>& remade) {
  instance.remade = remade;
  return instance;
}

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
           Clock& clock, Board& board)
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
    search_patterns();
    improve(scheduler_.run(best_pattern_, true).orders);
    for (const Orders& seed : seeds) improve(seed);
    // Small problems leave work: search around the best orders and from random orders in turn.
    for (int k = 0; left_ > 0 && best_.makespan > good_enough_ && !clock_.over(); ++k) {
      if (k % 2 == 1) {
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
  Clock& clock_;
  Board& board_;
  ShiftPattern best_pattern_;
  BestOrders best_;
  long left_ = 0;  // moves that the work still allows
};

/// The registered schedules by name, each with the reason why the search has not started from it yet; empty
/// if it has.
using Starts = std::map<std::string, std::string>;

/// Returns the orders of all registered schedules that fit, best first. Stops when the time is over.
std::vector<Orders> registered(const Instance& instance, const SearchProblem& problem, Clock& clock,
                               Starts& starts) {
  std::vector<BestOrders> found;
  for (const ScheduleEntry& entry : schedule_entries()) {
    std::string& reason =
        starts.try_emplace(entry.name, "the budget was over before it was tried").first->second;
    if (clock.over_or_stopped()) continue;
    std::string misfit;
    ScheduleRequest request{.workers = problem.workers,
                            .microbatches = problem.microbatches,
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

/// One of the problems that a request stands for.
struct Variant {
  Layout layout;
  int chunks;
  SearchProblem problem;
  double bound = 0;
};

BestOrders search_variant(const Variant& variant, double seconds, std::uint64_t seed, Clock& clock,
                          const SearchOptions& options, Starts& starts) {
  const Instance instance(variant.problem);
  std::vector<Orders> seeds = registered(instance, variant.problem, clock, starts);
  Board board;
  std::vector<std::future<BestOrders>> running;
  for (int searcher = 0; searcher < searchers; ++searcher) {
    // Searcher c starts from its own patterns and from the c-th best registered schedule.
    std::vector<Orders> own;
    if (index(searcher) < seeds.size()) own.push_back(seeds[index(searcher)]);
    running.push_back(std::async(std::launch::async, [&, searcher, own = std::move(own)] {
      return Searcher(instance, variant.problem.may_recompute, seconds, variant.bound,
                      seed * searchers + index(searcher), clock, board)
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

/// Returns the problem with each share of the model divided into `chunks` equal stages; it has no placement
/// yet.
SearchProblem divided(const SearchRequest& request, int chunks) {
  SearchProblem problem{.workers = request.workers,
                        .microbatches = request.microbatches,
                        .costs = request.costs,
                        .stash = request.stash,
                        .memory_limits = request.memory_limits,
                        .may_recompute = std::ranges::find(request.homes, Home::none) != request.homes.end()};
  if (chunks == 1) return problem;
  const auto one_for_all_or_each = [&](std::size_t count) {
    return count == 1 || count == index(request.workers);  // else `Instance` reports the error
  };
  if (one_for_all_or_each(problem.costs.durations.size()) &&
      one_for_all_or_each(problem.costs.sizes.size())) {
    problem.costs = costs_of_stages(problem.costs, request.workers, request.workers * chunks);
  }
  if (!one_for_all_or_each(problem.stash.size())) return problem;
  const bool in_bytes =
      std::ranges::any_of(request.costs.sizes, [](const StageSizes& sizes) { return sizes.stash > 0; });
  std::vector<double> stash;
  for (const double of_share : problem.stash) {
    const double size = of_share / chunks;
    const int stages = problem.stash.size() == 1 ? 1 : chunks;
    stash.insert(stash.end(), index(stages), in_bytes ? std::ceil(size) : size);
  }
  problem.stash = std::move(stash);
  return problem;
}

std::vector<Variant> variants_of(const SearchRequest& request) {
  if (request.chunks && *request.chunks < 1) {
    throw InputError(fmt::format("search: needs at least 1 chunk, not {}", *request.chunks));
  }
  std::vector<Variant> variants;
  for (int chunks = request.chunks.value_or(1); chunks <= request.chunks.value_or(max_chunks); ++chunks) {
    for (const Layout layout : {Layout::v, Layout::loop}) {
      if (request.layout && layout != *request.layout) continue;
      // With one chunk or one worker, both layouts are the same.
      if (!request.layout && layout == Layout::loop && (chunks == 1 || request.workers == 1)) continue;
      SearchProblem problem = request.chunks ? divided(request, 1) : divided(request, chunks);
      problem.stage_workers = layout_workers(layout, request.workers, chunks);
      variants.push_back({layout, chunks, std::move(problem)});
    }
  }
  return variants;
}

/// Returns the first worker whose stages' stashes of one micro-batch exceed its limit, and their sum.
std::optional<std::pair<int, double>> first_excess(const SearchProblem& problem) {
  const Instance instance(problem);
  for (int w = 0; w < instance.workers; ++w) {
    const double need = problem.may_recompute ? instance.largest_stash(w) : instance.min_memory(w);
    if (!instance.fits(w, need)) return std::pair(w, need);
  }
  return std::nullopt;
}

/// Removes the problems that no schedule solves. Throws InputError when none is left.
void require_feasible(const SearchRequest& request, std::vector<Variant>& variants) {
  const bool homes = variants.front().problem.may_recompute;
  const auto [worker, need] = first_excess(variants.front().problem).value_or(std::pair(0, 0.0));
  double min = std::numeric_limits<double>::infinity();
  for (const Variant& variant : variants) min = std::min(min, min_memory_limit(variant.problem));
  std::erase_if(variants, [](const Variant& variant) { return first_excess(variant.problem).has_value(); });
  if (!variants.empty()) return;
  if (request.memory_limits.size() > 1) {
    throw InputError(fmt::format("no schedule fits the memory limits: worker {} needs at least {}, {}",
                                 worker, need,
                                 homes ? "its largest stash" : "one stash of each of its stages"));
  }
  if (!request.stash.empty()) min = std::ceil(min * (1 - 1e-9));  // bytes
  throw InputError(fmt::format("no schedule fits a memory limit of {}: the smallest feasible limit is {}, {}",
                               request.memory_limits.front(), min,
                               homes ? "the largest stash" : "one stash of each stage of a worker"));
}

/// True if some schedule keeps the request's memory limits.
bool has_solution(const SearchRequest& request) {
  return std::ranges::any_of(variants_of(request),
                             [](const Variant& variant) { return !first_excess(variant.problem); });
}

/// The search with the same homes in all of its work. `remaking`: see SearchProblem.
SearchResult search_once(const SearchRequest& request, const SearchOptions& options, double remaking = 1) {
  std::vector<Variant> variants = variants_of(request);
  for (Variant& variant : variants) variant.problem.remaking = remaking;
  require_feasible(request, variants);
  for (Variant& variant : variants) variant.bound = lower_bound(variant.problem);
  std::ranges::stable_sort(variants, {}, &Variant::bound);

  Clock clock(options);
  const Variant* chosen = nullptr;
  BestOrders best;
  Starts starts;
  for (const Variant& variant : variants) {
    // The remaining problems have larger bounds, so they cannot be better either; or the time is over.
    if (chosen != nullptr && (variant.bound >= best.makespan * (1 - 1e-9) || clock.over())) break;
    const double share = options.work.value_or(options.budget) / static_cast<double>(variants.size());
    BestOrders found = search_variant(variant, share, options.seed, clock, options, starts);
    if (chosen == nullptr || found.makespan < best.makespan * (1 - 1e-9)) {
      best = std::move(found);
      chosen = &variant;
    }
  }
  const Instance instance = with_homes(Instance(chosen->problem), best.remade);
  Schedule schedule = to_schedule(instance, best.orders);
  Timeline timeline = simulate(schedule, chosen->problem.costs);
  std::vector<UnusedStart> unused;
  for (const auto& [name, reason] : starts) {
    if (!reason.empty()) unused.push_back({name, reason});
  }
  const double bound = bound_of_makespan(variants.front().bound, timeline.makespan);
  return {.schedule = std::move(schedule),
          .costs = chosen->problem.costs,
          .timeline = std::move(timeline),
          .layout = chosen->layout,
          .chunks = chosen->chunks,
          .memory_limits = chosen->problem.memory_limits,
          .peak_memory = instance.peak_memory(best.orders),
          .lower_bound = bound,
          .complete = !clock.was_over(),
          .unused = std::move(unused)};
}

}  // namespace

namespace {

/// The search whose stashes wait with their workers or nowhere.
SearchResult search_without_copies(const SearchRequest& request, const SearchOptions& options) {
  if (std::ranges::find(request.homes, Home::none) == request.homes.end())
    return search_once(request, options);
  // First without recomputation, so that its result is never better.
  SearchRequest kept = request;
  kept.homes = {Home::worker};
  std::optional<SearchResult> best;
  bool stopped = false;
  SearchOptions half = options;
  half.stop = [&] { return stopped = stopped || (options.stop && options.stop()); };
  const auto in_part = [&](double from) {
    if (!options.progress) return;
    half.progress = [&options, from](SearchProgress progress) {
      progress.done = from + progress.done / 2;
      options.progress(progress);
    };
  };
  if (has_solution(kept)) {
    in_part(0);
    best = search_once(kept, half);
  }
  in_part(0.5);
  SearchResult found = search_once(request, half);
  if (!best || found.timeline.makespan < best->timeline.makespan * (1 - 1e-9)) return found;
  best->lower_bound = bound_of_makespan(found.lower_bound, best->timeline.makespan);
  best->complete = best->complete && found.complete;
  return *std::move(best);
}

/// Replaces `best` by `found` with other homes, if that is shorter, or if there is no best: stashes are
/// copied, and some of them made again if the request allows it, until they fit. `found`: an order, whatever
/// its homes.
void consider_copies(const SearchRequest& request, Home copies, const SearchResult& found,
                     const std::vector<double>& stash, std::optional<SearchResult>& best) {
  const bool may_recompute = std::ranges::find(request.homes, Home::none) != request.homes.end();
  std::vector<double> limits = request.memory_limits;
  limits.resize(index(request.workers), limits.front());
  for (double& limit : limits) limit *= 1 + 1e-9;  // sums of sizes are rounded
  const Schedule order =
      found.schedule.with_homes([](int, int) { return Home::worker; }).with(Discipline::ordered);
  constexpr int parts = 4;
  constexpr int spares = 6;  // 0 to 5
  for (int way = 0; way < spares * (may_recompute ? parts : 1); ++way) {
    try {
      Schedule fitted = with_homes_to_fit(order, limits,
                                          {.copies = copies,
                                           .remade = static_cast<double>(way / spares) / parts,
                                           .spare = way % spares,
                                           .sizes = stash});
      const double makespan = simulated_makespan(fitted, found.costs);
      if (best && makespan >= best->timeline.makespan * (1 - 1e-9)) continue;
      Timeline timeline = simulate(fitted, found.costs);
      best = found;
      best->peak_memory = memory_in_order(fitted, stash);
      best->timeline = std::move(timeline);
      best->schedule = std::move(fitted);
      best->memory_limits = request.memory_limits;
    } catch (const InputError&) {  // the stashes in use at once take more than the limit
    }
  }
}

}  // namespace

SearchResult search(const SearchRequest& request, const SearchOptions& options) {
  if (request.workers < 1)
    throw InputError(fmt::format("search: needs at least 1 worker, not {}", request.workers));
  if (std::ranges::find(request.homes, Home::worker) == request.homes.end())
    throw InputError("search: the homes of stashes must include worker");
  SearchRequest near = request;
  std::erase_if(near.homes, is_copied);
  const auto copied = std::ranges::find_if(request.homes, is_copied);
  if (copied == request.homes.end()) return search_without_copies(request, options);
  if (near.homes.size() + 1 < request.homes.size())
    throw InputError("search: takes one of the homes host and disk");
  static_cast<void>(request.costs.home_link(*copied));  // for its error
  if (std::ranges::all_of(request.memory_limits, [](double limit) { return std::isinf(limit); }))
    return search_without_copies(near, options);
  // Orders for an ideal home, with room for the copies under way.
  constexpr int rooms = 4;
  SearchOptions part = options;
  bool stopped = false;
  part.stop = [&] { return stopped = stopped || (options.stop && options.stop()); };
  double done = 0;
  const auto take_part = [&](double share) {
    if (!options.progress) return;
    part.progress = [&options, done, share](SearchProgress progress) {
      progress.done = done + share * progress.done;
      options.progress(progress);
    };
    done += share;
  };
  constexpr double each = 1.0 / (rooms + 1);
  std::optional<SearchResult> best;
  take_part(each);
  if (has_solution(near)) best = search_without_copies(near, part);
  bool complete = !best || best->complete;
  for (int room = 0; room < rooms; ++room) {
    SearchRequest ideal = request;
    ideal.homes = {Home::none, Home::worker};
    for (double& limit : ideal.memory_limits) limit -= room * std::ranges::max(request.stash);
    take_part(each);
    if (std::ranges::min(ideal.memory_limits) <= 0 || !has_solution(ideal)) continue;
    const SearchResult found = search_once(ideal, part, 0);
    complete = complete && found.complete;
    consider_copies(request, *copied, found, divided(request, request.chunks ? 1 : found.chunks).stash, best);
  }
  if (!best) return search_without_copies(near, options);  // for its error
  // Copies take no time of a worker, and the bound knows no other.
  SearchRequest unlimited = near;
  unlimited.memory_limits = {std::numeric_limits<double>::infinity()};
  double bound = std::numeric_limits<double>::infinity();
  for (const Variant& variant : variants_of(unlimited)) bound = std::min(bound, lower_bound(variant.problem));
  best->lower_bound = bound_of_makespan(bound, best->timeline.makespan);
  best->complete = complete;
  return *std::move(best);
}

}  // namespace starpipe::plan
