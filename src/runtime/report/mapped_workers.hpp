// SPDX-License-Identifier: Apache-2.0
// The workers of a configuration, mapped to the devices of given nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/host/link.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/host/rank_location.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "runtime/report/mapping_report.hpp"

namespace starpipe::runtime {

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
