// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/chain.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

std::vector<int> stash_limits(std::span<const ChainStage> chain, double memory) {
  detail::require_chain(chain);
  constexpr double most = std::numeric_limits<int>::max();
  std::vector<int> limits;
  for (std::size_t s = 0; s < chain.size(); ++s) {
    const double left = memory - chain[s].weights;
    const double stashes = chain[s].activation > 0 ? left / chain[s].activation * (1 + 1e-12)
                           : left < 0              ? 0
                                                   : most;
    if (!(stashes >= 1)) {
      throw InputError(
          fmt::format("stage {} needs {} for its weights and one stash, more than the memory of {}", s,
                      chain[s].weights + chain[s].activation, memory));
    }
    limits.push_back(static_cast<int>(std::min(stashes, most)));
  }
  return limits;
}

}  // namespace starpipe::plan

namespace starpipe::plan::detail {

void require_chain(std::span<const ChainStage> chain) {
  if (chain.empty()) throw InputError("a chain needs at least one stage");
  double total = 0;
  for (std::size_t s = 0; s < chain.size(); ++s) {
    for (const double value : {chain[s].forward, chain[s].backward, chain[s].weights, chain[s].activation}) {
      if (value >= 0 && std::isfinite(value)) continue;
      throw InputError(fmt::format("stage {}: {} is negative or not finite", s, value));
    }
    total += chain[s].time();
  }
  if (!(total > 0)) throw InputError("a chain that takes no time has no period");
}

void require_limits(std::span<const ChainStage> chain, std::span<const int> limits) {
  require_chain(chain);
  if (limits.size() != chain.size()) {
    throw InputError(fmt::format("there are {} limits for {} stages", limits.size(), chain.size()));
  }
  for (std::size_t s = 0; s < limits.size(); ++s) {
    if (limits[s] < 1)
      throw InputError(fmt::format("stage {}: a limit of {} stashes, need at least 1", s, limits[s]));
  }
}

double longest_stage(std::span<const ChainStage> chain) {
  return std::ranges::max_element(chain, {}, &ChainStage::time)->time();
}

double round_trip(std::span<const ChainStage> chain, int stage) {
  const auto rest = chain.subspan(index(stage));
  return std::accumulate(rest.begin(), rest.end(), 0.0,
                         [](double sum, const ChainStage& s) { return sum + s.time(); });
}

}  // namespace starpipe::plan::detail
