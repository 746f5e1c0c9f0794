// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/home_ways.hpp"

namespace starpipe::plan {
namespace {

// A worker that holds m stashes at once, and may hold K < m, keeps those of the first K - 1 of each m forward
// passes in its order; the others are made again. `check` says if that keeps the limit: it does where one
// stash at a time is made again.
Schedule with_windows(const Schedule& ordered, const HomeWish& wish) {
  const std::vector<int> held = stashes_in_order(ordered);
  std::vector<bool> remade(ordered.id_count(), false);
  for (int worker = 0; worker < ordered.workers(); ++worker) {
    const int window = held[index(worker)];
    const int limit = wish.limits[index(worker)];
    int number = 0;
    for (const JobId id : ordered.order(worker)) {
      if (ordered.job(id).pass != Pass::F) continue;
      remade[id] = window > limit && number % window >= limit - 1;
      ++number;
    }
  }
  return ordered.with_homes([&](int stage, int microbatch) {
    return remade[ordered.forward(stage, microbatch)] ? Home::none : Home::worker;
  });
}

const bool registered_megatron =
    register_home_way({.name = "megatron",
                       .summary = "none for the last passes F of each window that exceeds the memory limit",
                       .source = "Korthikanti et al., Reducing Activation Recomputation in Large Transformer "
                                 "Models, 2022, appendix C",
                       .needs_limits = true,
                       .choose = with_windows});

}  // namespace
}  // namespace starpipe::plan
