// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/worker_map.hpp"

#include <numeric>
#include <stdexcept>
#include <utility>

namespace starpipe::runtime {

WorkerMap::WorkerMap(int workers, int ranks)
    : ranks_(ranks), places_(static_cast<std::size_t>(workers)), workers_(places_.size()) {
  std::iota(places_.begin(), places_.end(), 0);
  workers_ = places_;
}

WorkerMap::WorkerMap(int ranks, std::vector<int> places)
    : ranks_(ranks), places_(std::move(places)), workers_(places_.size(), -1) {
  for (int worker = 0; worker < workers(); ++worker) {
    const int at = place(worker);
    if (at < 0 || at >= workers() || workers_[static_cast<std::size_t>(at)] >= 0) {
      throw std::logic_error("two workers in one place");
    }
    workers_[static_cast<std::size_t>(at)] = worker;
  }
}

}  // namespace starpipe::runtime
