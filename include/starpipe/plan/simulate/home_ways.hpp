// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// What a way may look at besides the schedule.
struct HomeWish {
  std::vector<int> limits = {};  ///< stashes that each worker may hold; empty: no limit
  Costs costs = {};              ///< as `simulate` takes them
};

/// A named way to choose the homes of all stashes of a schedule.
struct HomeWay {
  std::string name;
  std::string summary;  ///< one line
  std::string source;   ///< the publication
  bool needs_limits = false;
  /// Returns the schedule with homes: the jobs of each worker keep their order. `ordered`: an ordered
  /// schedule, without a limit of its own. Throws InputError, without the schedule's name, for what the way
  /// is not defined for.
  std::function<Schedule(const Schedule& ordered, const HomeWish& wish)> choose;
};

/// Registers a way, as `register_schedule` registers a schedule.
bool register_home_way(HomeWay way);

/// Returns all ways, sorted by name. Throws InputError when a registration failed.
std::vector<HomeWay> home_ways();

/// True for the name of a way.
bool is_home_way(std::string_view name);

/// Returns the way of a name. Throws InputError for an unknown one.
const HomeWay& find_home_way(std::string_view name);

}  // namespace starpipe::plan
