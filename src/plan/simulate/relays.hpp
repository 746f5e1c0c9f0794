// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "plan/simulate/fetches.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A message: rank `from` sends a segment of weights to rank `to`, whose jobs read these weights.
struct RelayStep {
  std::size_t segment = 0;
  int from = 0;  ///< the holder's rank, or a rank that got the segment by an earlier step
  int to = 0;
  std::uint64_t first = 0;  ///< the segment is these bytes of the weights: [first, first + bytes)
  std::uint64_t bytes = 0;
  friend bool operator==(const RelayStep&, const RelayStep&) = default;
};

/// Returns the messages that bring weights of `bytes` bytes from the rank `holder` to the ranks `readers`,
/// ascending, each byte once to each reader. Empty where the holder sends the whole weights to each reader:
/// to one reader, and where segments would be smaller than 128 KiB.
///
/// The holder sends each segment to one reader only. So each byte leaves the holder's port once. This reader
/// passes the segment on: to all other readers if there are at most `max_relay_branches` readers, else along
/// a tree with so many branches at each node. The trees of the segments begin with different readers, so a
/// reader sends less than twice the bytes that it receives (SplitStream, Castro et al., 2003, has such
/// trees). The readers follow the holder in the order of ranks: so over several holders all ranks send alike.
///
/// A step comes after the step that brings its segment to the sender. The plan knows no speed of links.
std::vector<RelayStep> relay_plan(int holder, std::span<const int> readers, std::uint64_t bytes);

inline constexpr std::size_t max_relay_branches = 8;
inline constexpr std::size_t max_relay_segments = 16;

/// Weights on the rank `holder` that the ranks `readers` read.
struct WeightsToSend {
  int holder = 0;
  std::vector<int> readers{};
  std::uint64_t bytes = 0;
};

/// True if weights should go by relays: if the holders sent all of them to each reader, the busiest rank
/// would send at least a quarter more than any rank receives. Otherwise the ports of the receivers are the
/// limit, as under `fsdp` with equal stages on all ranks, and relays would only add messages.
bool relays_help(std::span<const WeightsToSend> weights);

/// Weights that lie on one holder and are read by jobs on other ranks.
struct FetchedWeights {
  int stage = 0;  ///< as Fetch::stage
  int from = 0;   ///< worker
  std::uint64_t bytes = 0;
  std::uint32_t turn = 0;        ///< of the first of these jobs
  std::map<int, int> readers{};  ///< by rank: the first worker that reads them
};

/// Returns the weights that may go by relays, in the order in which jobs need them; none where relays do not
/// help. Ranks are as in Costs::workers_of_rank.
std::vector<FetchedWeights> relayed_weights(const Schedule& schedule, const Costs& costs,
                                            const Fetches& fetches);

/// Returns relay_plan for `weights`: steps between ranks.
std::vector<RelayStep> relay_plan(const FetchedWeights& weights, int workers_of_rank);

}  // namespace starpipe::plan
