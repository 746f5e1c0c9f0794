// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/search/search_problem.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::plan {

/// The problems to search over: a single problem if chunks and layout are given, else one for each
/// combination.
struct SearchRequest {
  int workers = 1;
  int microbatches = 1;
  /// Slices K into which each micro-batch is cut (Schedule::slices). Durations, bytes and stashes are of
  /// whole micro-batches, and are divided equally, unless `costs` and `stash` have entries for each stage and
  /// slice.
  int slices = 1;
  /// C. If absent, the search tries 1 to 4; `costs` and `stash` then belong to shares of the model, 1/W each,
  /// and each share is divided into C equal stages.
  std::optional<int> chunks = {};
  /// If absent, the search tries both.
  std::optional<Layout> layout = {};
  Costs costs = {};
  std::vector<double> stash = {1};
  /// One for all workers, or one for each.
  std::vector<double> memory_limits = {std::numeric_limits<double>::infinity()};
  /// Homes that the search may give to stashes. Home::worker must be among them. With Home::none the search
  /// may let R compute F again instead of keeping a stash. With Home::host or Home::disk, of which it takes
  /// one, it may copy a stash there and back.
  std::vector<Home> homes = {Home::worker};
  /// True if it may also copy stashes to other workers. `costs` must then have `peer`.
  bool peers = false;
};

/// The word for any other worker among the homes of a search.
inline constexpr std::string_view peer_word = "peer";

/// Sets `homes` and `peers` of a request. `words`: some of `home_words` and `peer_word`. Throws InputError
/// for another word.
void set_homes(SearchRequest& request, std::span<const std::string> words);

/// State of a running search.
struct SearchProgress {
  double seconds = 0;      ///< since the start
  double done = 0;         ///< share of the work, 0 to 1
  double makespan = 0;     ///< of the best schedule so far
  double lower_bound = 0;  ///< of the problem that is being searched
};

struct SearchOptions {
  /// Seconds after which the search ends with the best schedule so far.
  double budget = 10;
  /// Amount of work in seconds of a slow core, so that the result does not depend on the clock; if absent,
  /// the budget. Two cores of 2020 do two seconds of work in one second.
  std::optional<double> work = {};
  std::uint64_t seed = 1;
  /// Called from time to time, from the thread that called `search`.
  std::function<void(const SearchProgress&)> progress = {};
  /// Called many times per second, from the thread that called `search`. Once it returns true the search ends
  /// with the best schedule so far, as at the end of its budget.
  std::function<bool()> stop = {};
};

/// A registered schedule that the search could not start from.
struct UnusedStart {
  std::string schedule;
  std::string reason;
};

struct SearchResult {
  Schedule schedule;  ///< ordered, named "search"
  Costs costs;        ///< of its stages
  Timeline timeline;
  Layout layout;
  int chunks;
  std::vector<double> memory_limits;  ///< of the request
  std::vector<double> peak_memory;    ///< by worker, in the unit of the limits
  /// No schedule of any problem that was considered has a smaller makespan.
  double lower_bound;
  bool complete;  ///< false if the budget ended the search: another run may then find another schedule
  std::vector<UnusedStart> unused;  ///< schedules that were the start of no problem, by name
};

/// Searches for the schedule with the smallest makespan within the memory limit.
///
/// The search starts from every registered schedule that fits and from patterns. A pattern is a due time for
/// each pass of each stage, repeated for each micro-batch (Controllable Memory, section 2, in real
/// durations). List scheduling turns a pattern into an order that respects durations, transfers and memory.
/// Random changes improve the patterns; tabu search on the critical path improves the orders (Nowicki and
/// Smutnicki, 1996). They leave out that transfers on shared links delay each other; the orders found, and
/// the registered schedules' orders, are then compared with all delays. A `complete` result depends on the
/// amount of work and the seed alone.
///
/// With Home::none among the homes, the search works twice, first without recomputation and then with it,
/// each time for as long as the options say, and returns the better schedule. Patterns then also say which
/// share of each chunk's F is computed again, and the homes of an order are the fewest that memory needs
/// (`dropped_to_fit`). R runs directly before B on B's worker.
///
/// With Home::host or Home::disk, `costs` must have the link. The search then also looks for orders in which
/// stashes come back at no time. It does so four times, with 0 to 3 stashes of the memory left for copies
/// under way, each time for as long as the options say. In these orders stashes are copied, and with
/// Home::none some are computed again, until they fit (`with_homes_to_fit`). The result is the shortest of
/// all, and never longer than without such a home. Its bound counts the time of copies on their channels, and
/// how long a stash needs memory although it is copied.
///
/// With `peers`, `costs` must have `peer`. The search then also looks for orders with more memory on the
/// first workers and less on the last ones, for as long as the options say, twice. A copied stash goes to a
/// worker that has room for it, if there is one. The bound takes the fastest link, and assumes room for all.
///
/// Throws InputError for counts below 1, costs or sizes that are negative, not finite or of a wrong number,
/// transfers that do not overlap compute, homes without Home::worker, and a memory limit that no schedule can
/// keep; the message then has the smallest limit that works.
SearchResult search(const SearchRequest& request, const SearchOptions& options = {});

}  // namespace starpipe::plan
