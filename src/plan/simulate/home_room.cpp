// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

void check_room(const Schedule& schedule, const Costs& costs, Home home,
                const std::optional<HomeLink>& link) {
  if (!link || !link->memory) return;
  const auto is_used = [](double stashes) { return stashes > 0; };
  if (!costs.has_sizes() && std::ranges::any_of(waiting_at_homes(schedule, home, std::array{1.0}), is_used)) {
    throw InputError(
        fmt::format("{}_link: memory: nothing says how many bytes a stash has", to_string(home)));
  }
  std::vector<double> sizes;
  for (const StageSizes& size : costs.sizes) sizes.push_back(static_cast<double>(size.stash));
  const std::vector<double> waiting = waiting_at_homes(schedule, home, sizes);
  for (int first = 0; first < schedule.workers(); first += link->workers) {
    const int behind = std::min(first + link->workers, schedule.workers());
    const double sum = std::accumulate(waiting.begin() + first, waiting.begin() + behind, 0.0);
    if (sum <= static_cast<double>(*link->memory)) continue;
    const auto [need, given] = bytes_texts(static_cast<std::uint64_t>(sum), *link->memory);
    throw InputError(fmt::format(
        "{}_link: memory: up to {} of stashes of worker{} wait there at once, more than {}", to_string(home),
        need, behind - first == 1 ? fmt::format(" {}", first) : fmt::format("s {} to {}", first, behind - 1),
        given));
  }
}

}  // namespace

void check_room_at_homes(const Schedule& schedule, const Costs& costs) {
  if (costs.peer && costs.peer->memory)
    throw InputError("peer_link: memory: the schedule's memory limit is that of other workers");
  if (!schedule.copies()) return;
  check_room(schedule, costs, Home::host, costs.host);
  check_room(schedule, costs, Home::disk, costs.disk);
}

}  // namespace starpipe::plan
