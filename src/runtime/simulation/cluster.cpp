// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/simulation/cluster.hpp"

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

int Cluster::nodes(int workers) const {
  if (workers <= gpus_per_node) return 1;
  if (workers % gpus_per_node == 0) return workers / gpus_per_node;
  throw InputError(
      fmt::format("schedule.workers: {} workers do not fill nodes of {} GPUs", workers, gpus_per_node));
}

}  // namespace starpipe::runtime
