// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

/// Where the logical workers are. Slots are numbered over all ranks; each rank has a run of
/// consecutive slots, and runs differ in length by one at most. A slot carries one worker, on a core or a GPU
/// of its rank. By default worker w is in slot w.
class WorkerMap {
 public:
  /// Throws InputError when some ranks would have no worker.
  WorkerMap(int workers, int ranks);
  /// `slots`: by worker. Throws std::logic_error unless each slot has one worker.
  WorkerMap(int ranks, std::vector<int> slots);

  [[nodiscard]] int workers() const { return static_cast<int>(slots_.size()); }
  /// The first slot of a rank.
  [[nodiscard]] int first(int rank) const {
    return static_cast<int>(std::int64_t{workers()} * rank / ranks_);
  }
  /// The number of slots of a rank.
  [[nodiscard]] int count(int rank) const { return first(rank + 1) - first(rank); }
  [[nodiscard]] int slot(int worker) const { return slots_[index(worker)]; }
  [[nodiscard]] int worker(int slot) const { return workers_[index(slot)]; }
  /// The workers of a rank, by slot.
  [[nodiscard]] std::vector<int> workers_of(int rank) const;
  [[nodiscard]] int rank_of(int worker) const {
    // The inverse of `first`: the last rank whose slots start at or before this slot.
    return static_cast<int>((std::int64_t{slot(worker) + 1} * ranks_ - 1) / workers());
  }

 private:
  int ranks_;
  std::vector<int> slots_;    // by worker
  std::vector<int> workers_;  // by slot
};

}  // namespace starpipe::runtime
