// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/host/link.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The nodes and ranks of a mapping.
struct MappingRequest {
  /// A topology file for each node, as `lstopo FILE.xml` writes it; empty for this host. A file may be listed
  /// several times, for a cluster of equal nodes.
  std::vector<std::filesystem::path> nodes;
  int ranks = 0;  ///< MPI ranks, spread over the nodes in blocks; 0: one on each node
};

/// The device of each worker of the configured schedule under `runtime.mapping`, node by node; the cores of
/// each rank; and the traffic between workers with the kind of its link. As text or JSON. Ranks map workers
/// in the same way when they start, but a launcher may bind them to some cores, or hide some GPUs. Starts
/// nothing and reads no data. Throws InputError for a wrong configuration, a file that is not a topology, and
/// a node without GPU when one is needed.
std::string describe_mapping(const Config& config, const MappingRequest& request, bool json);

// The workers of a configuration, mapped to the devices of given nodes.

/// One worker's position in its rank.
struct Slot {
  int node;       ///< index of the node
  Device device;  ///< of the rank
  std::optional<unsigned>
      pu;  ///< of the thread that works or drives a GPU; nothing if the thread is not bound
};

struct MappedNode {
  std::string name;
  Topology topology;
  std::vector<Device> gpus;
};

/// Which slot each worker of the configured schedule has, and what that costs in transfers.
struct MappedWorkers {
  plan::Schedule schedule;
  bool automatic;  ///< `runtime.mapping` is auto
  std::vector<MappedNode> nodes;
  std::vector<RankLocation> ranks;     ///< [rank]
  std::vector<Slot> slots;             ///< of all ranks, in the order of ranks
  std::vector<int> mapping;            ///< [worker]: index in `slots`
  std::vector<plan::Traffic> traffic;  ///< between workers, of a step
  double seconds = 0;                  ///< a step on links, one message after the other
  double linear_seconds = 0;           ///< the same under the linear mapping

  [[nodiscard]] const Slot& slot_of(int worker) const { return slots[index(mapping[index(worker)])]; }
  [[nodiscard]] DeviceLink link_of(const plan::Traffic& pair) const {
    return link_between(slot_of(pair.from).device, slot_of(pair.to).device);
  }
};

/// Maps the workers of the configured schedule to the nodes of `request`. Throws InputError as
/// describe_mapping() does.
MappedWorkers map_configured_workers(const Config& config, const MappingRequest& request);

}  // namespace starpipe::runtime
