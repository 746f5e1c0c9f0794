// SPDX-License-Identifier: Apache-2.0
#include "runtime/simulation/cluster.hpp"

#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

int Cluster::nodes(int workers) const {
  if (workers > gpus_per_node && workers % gpus_per_node != 0) {
    throw InputError(
        fmt::format("schedule.workers: {} workers do not fill nodes of {} GPUs", workers, gpus_per_node));
  }
  const int nodes = workers <= gpus_per_node ? 1 : workers / gpus_per_node;
  if (devices.size() > 1 && std::cmp_less(devices.size(), nodes)) {
    throw InputError(fmt::format("schedule.workers: {} workers need {} nodes, but device has the kinds of {}",
                                 workers, nodes, devices.size()));
  }
  return nodes;
}

int Cluster::ranks(int workers) const {
  const int count = nodes(workers);
  if (workers / count % ranks_per_node != 0) {
    throw InputError(
        fmt::format("--ranks-per-node: the {} workers of a node cannot be divided among {} ranks",
                    workers / count, ranks_per_node));
  }
  return count * ranks_per_node;
}

std::string Cluster::device(int worker) const {
  if (devices.empty()) return {};
  return devices.size() == 1 ? devices.front() : devices[index(worker / gpus_per_node)];
}

}  // namespace starpipe::runtime
