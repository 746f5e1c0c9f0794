// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate/relays.hpp"

#include <algorithm>
#include <utility>

namespace starpipe::plan {
namespace {

WeightsToSend between_ranks(const FetchedWeights& weights, int workers_of_rank) {
  WeightsToSend result{.holder = weights.from / workers_of_rank, .readers = {}, .bytes = weights.bytes};
  for (const auto& [rank, worker] : weights.readers) result.readers.push_back(rank);
  return result;
}

}  // namespace

std::vector<RelayStep> relay_plan(int holder, std::span<const int> readers, std::uint64_t bytes) {
  constexpr std::uint64_t smallest = std::uint64_t{128} << 10;
  constexpr std::uint64_t word = 4;
  const std::size_t count = readers.size();
  const std::size_t branches = std::min(count, max_relay_branches);
  if (count < 2 || bytes < branches * smallest) return {};
  const std::size_t each = std::min<std::uint64_t>(max_relay_segments, bytes / smallest) / branches;
  const std::size_t segments = branches * each;
  const auto next = static_cast<std::size_t>(std::ranges::upper_bound(readers, holder) - readers.begin());
  std::vector<RelayStep> steps;
  steps.reserve(segments * count);
  for (std::size_t segment = 0; segment < segments; ++segment) {
    const std::uint64_t first = bytes * segment / segments / word * word;
    const std::uint64_t end =
        segment + 1 == segments ? bytes : bytes * (segment + 1) / segments / word * word;
    const std::size_t begin = next + segment % branches * count / branches;
    const auto reader = [&](std::size_t position) { return readers[(begin + position) % count]; };
    // The tree is a heap: the reader at position p sends to those at p * branches + 1 and the next ones.
    for (std::size_t position = 0; position < count; ++position) {
      const int from = position == 0 ? holder : reader((position - 1) / branches);
      steps.push_back({segment, from, reader(position), first, end - first});
    }
  }
  return steps;
}

bool relays_help(std::span<const WeightsToSend> weights) {
  std::map<int, std::uint64_t> sent;  // by rank
  std::map<int, std::uint64_t> received;
  for (const auto& [holder, readers, bytes] : weights) {
    sent[holder] += bytes * readers.size();
    for (const int reader : readers) received[reader] += bytes;
  }
  const auto most = [](const std::map<int, std::uint64_t>& of) {
    std::uint64_t result = 0;
    for (const auto& [rank, bytes] : of) result = std::max(result, bytes);
    return result;
  };
  return most(sent) >= most(received) + most(received) / 4;
}

std::vector<FetchedWeights> relayed_weights(const Schedule& schedule, const Costs& costs,
                                            const Fetches& fetches) {
  std::map<std::pair<int, int>, FetchedWeights> found;  // by stage and holder
  for (const JobId id : schedule.order()) {
    const int worker = schedule.compute(id);
    fetches.for_each_of_weights(id, [&](const Fetch& fetch) {
      const int rank = worker / costs.workers_of_rank;
      if (rank == fetch.from / costs.workers_of_rank) return;
      const std::uint32_t turn = schedule.turn(id);
      FetchedWeights& weights = found
                                    .try_emplace({fetch.stage, fetch.from},
                                                 FetchedWeights{fetch.stage, fetch.from, fetch.bytes, turn})
                                    .first->second;
      weights.turn = std::min(weights.turn, turn);
      weights.readers.try_emplace(rank, worker);
    });
  }
  std::vector<FetchedWeights> all;
  std::vector<WeightsToSend> to_send;
  for (auto& [of, weights] : found) {
    to_send.push_back(between_ranks(weights, costs.workers_of_rank));
    all.push_back(std::move(weights));
  }
  if (!relays_help(to_send)) return {};
  std::ranges::stable_sort(all, {}, &FetchedWeights::turn);
  return all;
}

std::vector<RelayStep> relay_plan(const FetchedWeights& weights, int workers_of_rank) {
  const auto [holder, readers, bytes] = between_ranks(weights, workers_of_rank);
  return relay_plan(holder, readers, bytes);
}

}  // namespace starpipe::plan
