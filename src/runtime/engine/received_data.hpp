// SPDX-License-Identifier: Apache-2.0
// The memory of data that a rank receives from other ranks. StarPU-MPI would allocate it for all of them when
// their tasks are inserted, at the beginning of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "runtime/engine/task_graph.hpp"

namespace starpipe::runtime {

/// Lists the weights, segments of gradients and stashes that a rank receives, and says which memory each one
/// uses. Fetched weights have memory of their own for the whole run. Segments of other workers' gradients are
/// read by tasks of kind `add` and `copy`, and take turns in a few buffers. Stashes of other workers are read
/// by O and L, and take turns in a buffer for each stage and worker from which they come. Turns are in the
/// graph's order of tasks. A sender waits until its receiver has a free buffer.
struct ReceivedData {
  /// While one segment is added, the next ones arrive. Where segments are halves of gradients or less, there
  /// are twice as many, which take no more memory.
  static constexpr std::size_t max_buffers = 2;  // of segments

  struct Turn {
    std::uint32_t first_use;              ///< the task of the graph that reads it first on this rank
    std::uint32_t last_use;               ///< and last
    std::size_t buffer = 0;               ///< index into `buffers`
    std::optional<std::size_t> previous;  ///< the datum that used the buffer before, in the same step
  };

  std::set<std::size_t> weights;      ///< data
  std::map<std::size_t, Turn> turns;  ///< of segments and stashes, by datum
  std::vector<std::size_t> buffers;   ///< the largest datum in each
};

/// True if StarPU must not send the datum before the receiver asks for it, since the receiver takes it into
/// one of its `buffers`.
bool waits_for_buffer(const Task& task, const DataAccess& access, const TaskGraph& graph);

/// Returns the data that each rank receives, [rank]. `rank_of`: by worker.
std::vector<ReceivedData> received_data(const TaskGraph& graph, std::span<const int> rank_of);

/// Bytes for data that a rank receives in one step, each for the whole step.
struct ReceivedBytes {
  std::uint64_t weights = 0;
  std::uint64_t segments = 0;  ///< of gradients: the buffers
  std::uint64_t stashes = 0;   ///< the buffers of stashes
  std::uint64_t others = 0;    ///< activations and their gradients: one datum in each slot (DataSlots)
};

/// Returns the bytes of the largest datum that each rank receives, [rank].
std::vector<std::uint64_t> largest_received(const TaskGraph& graph, std::span<const int> rank_of);

/// Returns the bytes of each rank, [rank]. `window`: as DataSlots has it.
std::vector<ReceivedBytes> received_bytes(const TaskGraph& graph, std::span<const int> rank_of,
                                          std::optional<int> window);

}  // namespace starpipe::runtime
