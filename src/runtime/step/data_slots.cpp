// SPDX-License-Identifier: Apache-2.0
#include "runtime/step/data_slots.hpp"

#include <deque>
#include <limits>
#include <map>
#include <tuple>

namespace starpipe::runtime {
namespace {

constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

// A slot whose datum no later task touches.
struct FreeSlot {
  std::size_t since;  // the number of the datum's last task
  std::uint32_t slot;
};

// By datum: the number of the last task that touches it.
std::vector<std::size_t> last_uses(const TaskGraph& graph) {
  std::vector<std::size_t> last(graph.data().size(), 0);
  for (std::size_t t = 0; t < graph.tasks().size(); ++t) {
    for (const DataAccess& access : graph.tasks()[t].data) last[access.datum] = t;
  }
  return last;
}

}  // namespace

DataSlots::DataSlots(const TaskGraph& graph, std::optional<std::size_t> distance)
    : slots_(graph.data().size(), none) {
  using Key = std::tuple<DataKind, int, int, std::size_t>;
  const auto add_slot = [this] { return static_cast<std::uint32_t>(count_++); };
  std::vector<std::size_t> last = last_uses(graph);
  std::map<Key, std::deque<FreeSlot>> free;  // of each kind, oldest first
  for (std::size_t t = 0; t < graph.tasks().size(); ++t) {
    for (const DataAccess& access : graph.tasks()[t].data) {
      const Datum& datum = graph.data()[access.datum];
      std::uint32_t& slot = slots_[access.datum];
      if (!distance || datum.microbatch < 0) continue;
      std::deque<FreeSlot>& of_kind = free[{datum.kind, datum.stage, datum.worker, datum.size}];
      if (slot == none && !of_kind.empty() && of_kind.front().since + *distance < t) {
        slot = of_kind.front().slot;
        of_kind.pop_front();
      }
      if (slot == none) slot = add_slot();
      if (last[access.datum] != t) continue;
      of_kind.push_back({t, slot});
      last[access.datum] = never;  // once, though a task may name a datum twice
    }
  }
  for (std::uint32_t& slot : slots_) {
    if (slot == none) slot = add_slot();
  }
}

}  // namespace starpipe::runtime
