// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/search/search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "plan/search/instance.hpp"
#include "plan/search/lower_bound.hpp"
#include "plan/search/searchers.hpp"
#include "plan/simulate/homes_at_peers.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/homes_to_fit.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

constexpr int max_chunks = 4;  // considered when none are given

bool may_recompute(const SearchRequest& request) {
  return std::ranges::find(request.homes, Home::none) != request.homes.end();
}

/// Returns the home outside the worker that the request allows.
std::optional<Home> copied_home(const SearchRequest& request) {
  const auto copied = std::ranges::find_if(request.homes, is_copied);
  return copied == request.homes.end() ? std::nullopt : std::optional(*copied);
}

/// Returns the problem with each share of the model divided into `chunks` equal stages; it has no placement
/// yet.
SearchProblem divided_stages(const SearchRequest& request, int chunks) {
  SearchProblem problem{.workers = request.workers,
                        .microbatches = request.microbatches,
                        .costs = request.costs,
                        .stash = request.stash,
                        .memory_limits = request.memory_limits,
                        .may_recompute = may_recompute(request),
                        .copies = copied_home(request),
                        .peers = request.peers};
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

/// The same, with slices.
SearchProblem divided(const SearchRequest& request, int chunks) {
  SearchProblem problem = divided_stages(request, chunks);
  const int slices = problem.slices = request.slices;
  if (slices == 1) return problem;
  require_input(slices > 1, "search", fmt::format("needs at least 1 slice, not {}", slices));
  problem.microbatches *= slices;
  problem.costs = costs_of_slices(problem.costs, slices);
  const std::size_t stages = index(request.workers) * index(request.chunks.value_or(chunks));
  if (request.chunks && problem.stash.size() == stages * index(slices)) return problem;
  std::vector<double> stash;
  for (const double whole : problem.stash)
    stash.insert(stash.end(), problem.stash.size() == 1 ? 1 : index(slices), whole / slices);
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
    const double need = problem.keeps_all() ? instance.min_memory(w) : instance.largest_stash(w);
    if (!instance.fits(w, need)) return std::pair(w, need);
  }
  return std::nullopt;
}

/// Removes the problems that no schedule solves. Throws InputError when none is left.
void require_feasible(const SearchRequest& request, std::vector<Variant>& variants) {
  const bool homes = !variants.front().problem.keeps_all();
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

  SearchClock clock(options);
  const Variant* chosen = nullptr;
  BestOrders best;
  Starts starts;
  for (const Variant& variant : variants) {
    // The remaining problems have larger bounds, so they cannot be better either; or the time is over.
    if (chosen != nullptr && (variant.bound >= best.makespan * (1 - 1e-9) || clock.over())) break;
    const double share = options.work.value_or(options.budget) / static_cast<double>(variants.size());
    BestOrders found = search_variant(variant, share, clock, options, starts);
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

/// Divides a search into parts of equal work, which run one after another: they share one progress line, and
/// where one is stopped, the later ones stop too.
class Parts {
 public:
  Parts(const SearchOptions& options, int count) : all_(options), part_(options), count_(count) {
    part_.stop = [this] { return stopped_ = stopped_ || (all_.stop && all_.stop()); };
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  /// Returns the options of the next part. They change with the next call.
  const SearchOptions& next() {
    if (all_.progress) {
      part_.progress = [this, before = begun_](SearchProgress progress) {
        progress.done = (before + progress.done) / count_;
        all_.progress(progress);
      };
    }
    ++begun_;
    return part_;
  }

 private:
  const SearchOptions& all_;
  SearchOptions part_;
  int count_;
  int begun_ = 0;
  bool stopped_ = false;
};

/// The search whose stashes wait with their workers or nowhere.
SearchResult search_without_copies(const SearchRequest& request, const SearchOptions& options) {
  if (!may_recompute(request)) return search_once(request, options);
  // First without recomputation, so that its result is never better.
  SearchRequest kept = request;
  kept.homes = {Home::worker};
  const bool may_keep = has_solution(kept);
  Parts parts(options, may_keep ? 2 : 1);
  std::optional<SearchResult> best;
  if (may_keep) best = search_once(kept, parts.next());
  SearchResult found = search_once(request, parts.next());
  if (!best || found.timeline.makespan < best->timeline.makespan * (1 - 1e-9)) return found;
  best->lower_bound = bound_of_makespan(found.lower_bound, best->timeline.makespan);
  best->complete = best->complete && found.complete;
  return *std::move(best);
}

/// Returns a makespan that no schedule of any layout can beat, where stashes may be copied.
double bound_with_copies(const SearchRequest& request) {
  double bound = std::numeric_limits<double>::infinity();
  for (const Variant& variant : variants_of(request)) {
    if (!first_excess(variant.problem)) bound = std::min(bound, lower_bound(variant.problem));
  }
  return bound;
}

/// Returns the ways to fit an order into memory that the search tries.
std::vector<FitWays> ways_to_fit(const SearchRequest& request, const std::vector<double>& stash) {
  constexpr int parts = 4;
  constexpr int spares = 6;  // 0 to 5
  const bool remakes = may_recompute(request);
  const std::optional<Home> copied = copied_home(request);
  const Home others = copied ? *copied : remakes ? Home::none : Home::worker;
  std::vector<FitWays> ways;
  for (int remade = 0; remade < (copied && remakes ? parts : 1); ++remade) {
    for (int spare = 0; spare < spares; ++spare) {
      ways.push_back(
          {.copies = others, .remade = static_cast<double>(remade) / parts, .spare = spare, .sizes = stash});
    }
  }
  return ways;
}

/// Replaces `best` by `found` with other homes, if that is shorter, or if there is no best: stashes are
/// copied, and some of them made again if the request allows it, until they fit. `found`: an order, whatever
/// its homes.
void consider_copies(const SearchRequest& request, const SearchResult& found,
                     std::optional<SearchResult>& best) {
  const std::vector<double> stash = divided(request, request.chunks ? 1 : found.chunks).stash;
  std::vector<double> limits = request.memory_limits;
  limits.resize(index(request.workers), limits.front());
  for (double& limit : limits) limit *= 1 + 1e-9;  // sums of sizes are rounded
  const Schedule order =
      found.schedule.with_homes([](int, int) { return Home::worker; }).with(Discipline::ordered);
  const auto consider = [&](const auto& fit) {
    try {
      Schedule fitted = fit();
      const double makespan = simulated_makespan(fitted, found.costs);
      if (best && makespan >= best->timeline.makespan * (1 - 1e-9)) return;
      Timeline timeline = simulate(fitted, found.costs);
      best = found;
      best->peak_memory = memory_in_order(fitted, stash);
      best->timeline = std::move(timeline);
      best->schedule = std::move(fitted);
      best->memory_limits = request.memory_limits;
    } catch (const InputError&) {  // the stashes in use at once take more than the limit
    }
  };
  for (const FitWays& ways : ways_to_fit(request, stash)) {
    if (is_copied(ways.copies)) consider([&] { return with_homes_to_fit(order, limits, ways); });
    if (request.peers) consider([&] { return with_homes_at_peers(order, limits, found.costs, ways); });
  }
}

/// Returns the requests whose orders `search_with_copies` fits into memory, with the time of R in each.
std::vector<std::pair<SearchRequest, double>> requests_for_orders(const SearchRequest& request) {
  constexpr int rooms = 4;  // room for 0 to 3 copies under way
  std::vector<std::pair<SearchRequest, double>> requests;
  for (int room = 0; room < rooms; ++room) {
    SearchRequest ideal = request;  // for an ideal home
    ideal.homes = {Home::none, Home::worker};
    ideal.peers = false;
    for (double& limit : ideal.memory_limits) limit -= room * std::ranges::max(request.stash);
    requests.emplace_back(std::move(ideal), 0);
  }
  if (!request.peers) return requests;
  // The first workers of a pipeline hold their stashes longest, and the last ones have room for guests.
  const double largest = std::ranges::max(request.stash);
  for (const double slope : {0.35, 0.7}) {
    SearchRequest sloping = request;
    sloping.homes = {Home::worker};
    sloping.peers = false;
    sloping.memory_limits.resize(index(request.workers), request.memory_limits.front());
    for (int w = 0; w < request.workers; ++w) {
      double& limit = sloping.memory_limits[index(w)];
      const double from_middle = request.workers > 1 ? 1 - 2.0 * w / (request.workers - 1) : 0;
      limit = std::max(largest, (limit - largest / 2) * (1 + slope * from_middle));
    }
    requests.emplace_back(std::move(sloping), 1);
  }
  return requests;
}

/// The search in which stashes may also be copied. `near`: the request without copies.
SearchResult search_with_copies(const SearchRequest& request, const SearchRequest& near,
                                const SearchOptions& options) {
  const auto requests = requests_for_orders(request);
  Parts parts(options, static_cast<int>(requests.size()) + 1);
  std::optional<SearchResult> best;
  const SearchOptions& first = parts.next();
  if (has_solution(near)) best = search_without_copies(near, first);
  bool complete = !best || best->complete;
  for (const auto& [wanted, remaking] : requests) {
    const SearchOptions& part = parts.next();
    if (std::ranges::min(wanted.memory_limits) <= 0 || !has_solution(wanted)) continue;
    const SearchResult found = search_once(wanted, part, remaking);
    complete = complete && found.complete;
    consider_copies(request, found, best);
  }
  if (!best) return search_without_copies(near, options);  // for its error
  best->lower_bound = bound_of_makespan(bound_with_copies(request), best->timeline.makespan);
  best->complete = complete;
  return *std::move(best);
}

}  // namespace

void set_homes(SearchRequest& request, std::span<const std::string> words) {
  request.homes.clear();
  request.peers = false;
  for (const std::string& word : words) {
    if (word == peer_word) {
      request.peers = true;
    } else {
      request.homes.push_back(parse_home(word));
      if (request.homes.back().peer())
        throw InputError(fmt::format("search: the home {}: write {} for any other worker", word, peer_word));
    }
  }
}

SearchResult search(const SearchRequest& request, const SearchOptions& options) {
  const bool with_their_workers =
      !request.peers && std::ranges::count(request.homes, Home::worker) == std::ssize(request.homes);
  require_input(request.slices == 1 || with_their_workers, "search",
                "stashes of slices wait with their workers; other homes do not apply");
  if (request.workers < 1)
    throw InputError(fmt::format("search: needs at least 1 worker, not {}", request.workers));
  if (std::ranges::find(request.homes, Home::worker) == request.homes.end())
    throw InputError("search: the homes of stashes must include worker");
  const std::optional<Home> copied = copied_home(request);
  if (!copied && !request.peers) return search_without_copies(request, options);
  SearchRequest near = request;
  std::erase_if(near.homes, is_copied);
  near.peers = false;
  if (near.homes.size() + (copied ? 1 : 0) < request.homes.size())
    throw InputError("search: takes one of the homes host and disk");
  if (copied && request.costs.home_link(*copied).memory)
    throw InputError(fmt::format("{}_link: memory: search does not keep to it", to_string(*copied)));
  if (request.peers && !request.costs.peer)
    throw InputError("search: the time of a copy to another worker is not known (--copy peer=T)");
  const bool limited = std::ranges::any_of(request.memory_limits, [](double l) { return std::isfinite(l); });
  return limited ? search_with_copies(request, near, options) : search_without_copies(near, options);
}

}  // namespace starpipe::plan
