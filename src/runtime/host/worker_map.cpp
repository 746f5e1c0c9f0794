// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/worker_map.hpp"

#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

WorkerMap::WorkerMap(int workers, int ranks) : ranks_(ranks), slots_(index(workers)) {
  if (ranks > workers) {
    throw InputError(
        fmt::format("schedule.workers: {} ranks for {} workers, some ranks would have none", ranks, workers));
  }
  std::iota(slots_.begin(), slots_.end(), 0);
  workers_ = slots_;
}

WorkerMap::WorkerMap(int ranks, std::vector<int> slots)
    : ranks_(ranks), slots_(std::move(slots)), workers_(slots_.size(), -1) {
  for (int worker = 0; worker < workers(); ++worker) {
    const int at = slot(worker);
    if (at < 0 || at >= workers() || workers_[index(at)] >= 0)
      throw std::logic_error("two workers in one slot");
    workers_[index(at)] = worker;
  }
}

std::vector<int> WorkerMap::workers_of(int rank) const {
  const auto begin = workers_.begin() + first(rank);
  return {begin, begin + count(rank)};
}

}  // namespace starpipe::runtime
