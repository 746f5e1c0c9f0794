// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/received_data.hpp"

#include <algorithm>
#include <utility>

#include "runtime/engine/data_use.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Calls f(task number, task, datum number, rank) for each datum of another rank that a task reads.
template <class Function>
void for_each_received(const TaskGraph& graph, std::span<const int> rank_of, Function&& f) {
  for (std::uint32_t t = 0; t < graph.tasks().size(); ++t) {
    const Task& task = graph.tasks()[t];
    const int rank = rank_of[index(task.worker)];
    for (const DataAccess& access : task.data) {
      if (access.access == Access::read && rank_of[index(graph.data()[access.datum].worker)] != rank)
        f(t, task, access.datum, index(rank));
    }
  }
}

std::size_t rank_count(std::span<const int> rank_of) { return index(std::ranges::max(rank_of)) + 1; }

// Returns the data of a kind that the rank receives by turns, in the order of their first uses.
std::vector<std::size_t> by_first_use(const ReceivedData& data, const TaskGraph& graph, DataKind kind) {
  std::vector<std::size_t> order;
  for (const auto& [datum, turn] : data.turns) {
    if (graph.data()[datum].kind == kind) order.push_back(datum);
  }
  std::ranges::sort(order, {}, [&](std::size_t d) { return data.turns.at(d).first_use; });
  return order;
}

// Assigns a buffer to each segment that the rank receives. It is a new one while there are few, and later the
// one that became free first.
void assign_segments(ReceivedData& data, const TaskGraph& graph) {
  const std::vector<std::size_t> order = by_first_use(data, graph, DataKind::gradient_segment);
  const bool has_large = std::ranges::any_of(order, [&](std::size_t d) {
    return graph.data()[d].size > (graph.data()[graph.segment(d).from].size + 1) / 2;
  });
  const std::size_t max_buffers = ReceivedData::max_buffers * (has_large ? 1 : 2);
  std::vector<std::size_t> last;  // by buffer: the datum that uses it
  const auto last_use = [&](std::size_t datum) { return data.turns.at(datum).last_use; };
  for (const std::size_t datum : order) {
    ReceivedData::Turn& turn = data.turns.at(datum);
    const auto free = std::ranges::min_element(last, {}, last_use);
    if (last.size() < max_buffers || last_use(*free) >= turn.first_use) {
      turn.buffer = last.size();
      last.push_back(datum);
      data.buffers.push_back(datum);
    } else {
      turn.buffer = static_cast<std::size_t>(free - last.begin());
      turn.previous = std::exchange(*free, datum);
    }
    std::size_t& largest = data.buffers[turn.buffer];
    if (graph.data()[datum].size > graph.data()[largest].size) largest = datum;
  }
}

// Gives all stashes of one stage that come from one worker the same buffer. These may share a slot, and so a
// handle, which has one memory. One copy reads each.
void assign_stashes(ReceivedData& data, const TaskGraph& graph) {
  std::map<std::pair<int, int>, std::size_t> last;  // by stage and writer: the datum that uses the buffer
  for (const std::size_t datum : by_first_use(data, graph, DataKind::stash)) {
    ReceivedData::Turn& turn = data.turns.at(datum);
    const auto [at, is_new] =
        last.try_emplace({graph.data()[datum].stage, graph.data()[datum].worker}, datum);
    if (is_new) {
      turn.buffer = data.buffers.size();
      data.buffers.push_back(datum);
    } else {
      turn.buffer = data.turns.at(at->second).buffer;
      turn.previous = std::exchange(at->second, datum);
    }
  }
}

}  // namespace

bool waits_for_buffer(const Task& task, const DataAccess& access, const TaskGraph& graph) {
  if (access.access != Access::read) return false;
  const DataKind kind = graph.data()[access.datum].kind;
  if (is_stash_copy(task.kind)) return kind == DataKind::stash;
  return (task.kind == TaskKind::add || task.kind == TaskKind::copy) && kind == DataKind::gradient_segment;
}

std::vector<ReceivedData> received_data(const TaskGraph& graph, std::span<const int> rank_of) {
  std::vector<ReceivedData> all(rank_count(rank_of));
  for_each_received(graph, rank_of,
                    [&](std::uint32_t number, const Task& task, std::size_t datum, std::size_t rank) {
                      if (graph.data()[datum].kind == DataKind::weights) all[rank].weights.insert(datum);
                      if (!waits_for_buffer(task, {static_cast<std::uint32_t>(datum), Access::read}, graph))
                        return;
                      const ReceivedData::Turn first{.first_use = number, .last_use = number, .previous = {}};
                      all[rank].turns.try_emplace(datum, first).first->second.last_use = number;
                    });
  for (ReceivedData& data : all) {
    assign_segments(data, graph);
    assign_stashes(data, graph);
  }
  return all;
}

std::vector<std::uint64_t> largest_received(const TaskGraph& graph, std::span<const int> rank_of) {
  std::vector<std::uint64_t> all(rank_count(rank_of));
  for_each_received(graph, rank_of, [&](std::uint32_t, const Task&, std::size_t datum, std::size_t rank) {
    all[rank] = std::max<std::uint64_t>(all[rank], graph.data()[datum].bytes());
  });
  return all;
}

std::vector<ReceivedBytes> received_bytes(const TaskGraph& graph, std::span<const int> rank_of,
                                          std::optional<int> window) {
  std::vector<ReceivedBytes> all(rank_count(rank_of));
  const std::vector<ReceivedData> received = received_data(graph, rank_of);
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (const std::size_t datum : received[r].weights) all[r].weights += graph.data()[datum].bytes();
    for (const std::size_t datum : received[r].buffers) {
      const Datum& largest = graph.data()[datum];
      (largest.kind == DataKind::stash ? all[r].stashes : all[r].segments) += largest.bytes();
    }
  }
  const DataSlots slots(graph, window);
  std::vector<std::vector<bool>> seen(all.size(), std::vector<bool>(slots.count()));
  for_each_received(graph, rank_of, [&](std::uint32_t, const Task&, std::size_t datum, std::size_t rank) {
    const Datum& other = graph.data()[datum];
    if (received[rank].weights.contains(datum) || received[rank].turns.contains(datum)) return;
    if (seen[rank][slots.of(datum)]) return;
    seen[rank][slots.of(datum)] = true;
    all[rank].others += other.bytes();
  });
  return all;
}

}  // namespace starpipe::runtime
