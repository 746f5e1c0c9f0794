// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/simulated_exchange.hpp"

#include <utility>

#include <simgrid/barrier.h>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

// The ranks are coroutines of one thread, and switch only in sg_barrier_wait.
std::vector<std::string> exchange_texts(int rank, int ranks, std::string mine) {
  static std::vector<std::string> texts(index(ranks));
  static const sg_bar_t all_ranks = sg_barrier_init(static_cast<unsigned>(ranks));
  texts[index(rank)] = std::move(mine);
  sg_barrier_wait(all_ranks);
  std::vector<std::string> result = texts;
  sg_barrier_wait(all_ranks);  // nobody may write the next text before all have read this one
  return result;
}

}  // namespace starpipe::runtime
