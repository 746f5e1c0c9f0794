// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "plan/search/instance.hpp"
#include "plan/search/order_search.hpp"
#include "starpipe/plan/search/search.hpp"

namespace starpipe::plan {

/// The time limit, shared by the searchers.
class SearchClock {
 public:
  explicit SearchClock(const SearchOptions& options)
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

/// The best orders of a search, and which stashes have no home.
struct BestOrders {
  double makespan = std::numeric_limits<double>::infinity();
  Orders orders;
  std::vector<bool> remade;
};

/// The registered schedules by name, each with the reason why the search has not started from it yet; empty
/// if it has.
using Starts = std::map<std::string, std::string>;

/// A layout and a number of chunks that a request allows, with their problem.
struct Variant {
  Layout layout;
  int chunks;
  SearchProblem problem;
  double bound = 0;
};

/// Returns `instance` in which the stashes `remade` (Instance::remade) have no home.
Instance with_homes(Instance instance, const std::vector<bool>& remade);

/// Searches for orders of the variant. Several searchers run at the same time. Each starts from patterns of
/// its own and from one of the best registered schedules. `seconds`: work of each searcher
/// (SearchOptions::work). The result is the same for the same work and seed, unless the clock runs out.
/// `starts` gets an entry for each registered schedule. Calls the functions of `options` on the calling
/// thread.
BestOrders search_variant(const Variant& variant, double seconds, SearchClock& clock,
                          const SearchOptions& options, Starts& starts);

}  // namespace starpipe::plan
