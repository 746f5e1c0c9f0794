// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace starpipe::runtime {

/// Where the logical workers are. Each rank has a block of places, in order, sizes equal within one; a worker
/// has a place, that of its own number unless told otherwise.
class WorkerMap {
 public:
  WorkerMap(int workers, int ranks);
  /// `places`: by worker. Throws std::logic_error unless each place is some worker's.
  WorkerMap(int ranks, std::vector<int> places);
  [[nodiscard]] int workers() const { return static_cast<int>(places_.size()); }
  /// A rank's first place, and how many it has.
  [[nodiscard]] int first(int rank) const {
    return static_cast<int>(std::int64_t{workers()} * rank / ranks_);
  }
  [[nodiscard]] int count(int rank) const { return first(rank + 1) - first(rank); }
  [[nodiscard]] int place(int worker) const { return places_[static_cast<std::size_t>(worker)]; }
  [[nodiscard]] int worker(int place) const { return workers_[static_cast<std::size_t>(place)]; }
  [[nodiscard]] int rank_of(int worker) const {
    // The inverse of `first`: the last rank whose block starts at or before the place.
    return static_cast<int>((std::int64_t{place(worker) + 1} * ranks_ - 1) / workers());
  }

 private:
  int ranks_;
  std::vector<int> places_;   // by worker
  std::vector<int> workers_;  // by place
};

}  // namespace starpipe::runtime
