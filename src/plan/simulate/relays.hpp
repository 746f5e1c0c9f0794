// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace starpipe::plan {

/// One message of weights on their way from their holder to the ranks that read them.
struct RelayStep {
  std::size_t slice = 0;
  int from = 0;  ///< the holder's rank, or a rank that got the slice by an earlier step
  int to = 0;
  std::uint64_t first = 0;  ///< the slice is these bytes of the weights: [first, first + bytes)
  std::uint64_t bytes = 0;
  friend bool operator==(const RelayStep&, const RelayStep&) = default;
};

/// Returns the messages that bring weights of `bytes` bytes from the rank `holder` to the ranks `readers`,
/// ascending, each byte once to each reader. Empty where the holder sends the whole weights to each reader:
/// to one reader, and where slices would be smaller than 64 KiB.
///
/// The holder sends each slice to one reader, so all of its bytes leave its port once. That reader passes the
/// slice on: to all other readers where there are at most `max_relay_slices`, else along a tree with this many
/// branches at a node. The trees of the slices begin with different readers, so a reader sends less than
/// twice the bytes that it receives (SplitStream, Castro et al., 2003, has such trees). The readers follow the
/// holder in the order of ranks: so over several holders all ranks send alike.
std::vector<RelayStep> relay_plan(int holder, std::span<const int> readers, std::uint64_t bytes);

inline constexpr std::size_t max_relay_slices = 8;

}  // namespace starpipe::plan
