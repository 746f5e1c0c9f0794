// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/transfers.hpp"

#include <array>
#include <map>
#include <unordered_set>
#include <utility>

#include "plan/simulate/fetches.hpp"
#include "plan/simulate/reductions.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

void add(Received& received, std::uint64_t bytes) {
  ++received.count;
  received.bytes += bytes;
}

// The members of Transfers that count the data of each Fetch::Kind.
constexpr std::array counted_as = {&Transfers::activations, &Transfers::stashes,
                                   &Transfers::stashes,     &Transfers::gradients,
                                   &Transfers::keys_values, &Transfers::keys_values_gradients,
                                   &Transfers::weights};

// Calls f(from, to, kind, bytes) for each transfer of a step; `kind` is a member of Transfers.
template <class Function>
void for_each_transfer(const Schedule& schedule, const Costs& costs, Function&& f) {
  const Fetches fetches(schedule, costs);
  std::unordered_set<std::uint64_t> copies;
  for (const JobId id : schedule.order()) {
    fetches.for_each(id, [&](const Fetch& fetch) {
      const std::optional<std::uint64_t> copy = fetches.copy(fetch, schedule.compute(id));
      if (copy && !copies.insert(*copy).second) return;
      f(fetch.from, schedule.compute(id), counted_as[index(fetch.kind)], fetch.bytes);
    });
    if (schedule.copies() && is_copy(schedule.job(id).pass) && schedule.peer(id)) {
      const auto [from, to] = schedule.ends(id);
      f(from, to, &Transfers::stashes, costs.size(schedule.job(id).stage).stash);
    }
  }
  const auto reduce = [&](std::span<const int> stages, std::uint64_t bytes) {
    for (const ReductionStep& step : reduction_plan(schedule, stages, bytes))
      f(step.from, step.into, &Transfers::weight_gradients, step.bytes);
  };
  for (int s = 0; s < schedule.stages(); ++s) {
    if (costs.size(s).has_weights) reduce(std::span(&s, 1), costs.size(s).updated());
  }
  for (const SharedWeights& weights : costs.shared) reduce(weights.stages, weights.updated());
}

}  // namespace

Received Transfers::total() const {
  Received sum;
  for (const TransferKind& kind : transfer_kinds) {
    if (kind.member == &Transfers::reloads) continue;
    sum.count += (this->*kind.member).count;
    sum.bytes += (this->*kind.member).bytes;
  }
  return sum;
}

bool may_occur(const TransferKind& kind, const Schedule& schedule) {
  if (kind.member == &Transfers::reloads) return schedule.copies();
  const bool of_slices =
      kind.member == &Transfers::keys_values || kind.member == &Transfers::keys_values_gradients;
  return !of_slices || schedule.slices() > 1;
}

std::vector<Transfers> count_transfers(const Schedule& schedule, const Costs& costs) {
  std::vector<Transfers> received(index(schedule.workers()));
  for_each_transfer(schedule, costs, [&](int, int to, Received Transfers::*kind, std::uint64_t bytes) {
    add(received[index(to)].*kind, bytes);
  });
  for (int w = 0; w < schedule.workers(); ++w) {
    for (const JobId id : schedule.copies_of(w)) {
      const Job job = schedule.job(id);
      if (job.pass == Pass::L && !schedule.peer(id))
        add(received[index(w)].reloads, costs.size(job.stage).stash);
    }
  }
  return received;
}

std::vector<Traffic> count_traffic(const Schedule& schedule, const Costs& costs) {
  std::map<std::pair<int, int>, Received> sums;
  for_each_transfer(schedule, costs, [&](int from, int to, Received Transfers::*, std::uint64_t bytes) {
    add(sums[{from, to}], bytes);
  });
  std::vector<Traffic> traffic;
  for (const auto& [ends, sent] : sums) traffic.push_back({ends.first, ends.second, sent});
  return traffic;
}

}  // namespace starpipe::plan
