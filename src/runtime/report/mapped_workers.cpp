// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/mapped_workers.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "runtime/hardware/cuda_devices.hpp"
#include "runtime/hardware/gpu_division.hpp"
#include "runtime/hardware/hardware.hpp"
#include "runtime/hardware/locality.hpp"
#include "runtime/hardware/mapping.hpp"
#include "runtime/ranks/worker_map.hpp"
#include "runtime/setup/planned_run.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

std::vector<MappedNode> nodes_of(const MappingRequest& request, bool gpus) {
  std::vector<MappedNode> nodes;
  for (const std::filesystem::path& file : request.nodes) {
    const Topology topology = Topology::from_file(file);
    nodes.push_back({fmt::format("node {} ({})", nodes.size(), file.string()), topology,
                     gpus ? find_gpus(topology) : std::vector<Device>{}});
  }
  if (nodes.empty()) {
    nodes.push_back({find_hardware().machine, gpus ? Topology::host_with_devices() : Topology::host(),
                     gpus ? visible_gpus() : std::vector<Device>{}});
  }
  return nodes;
}

/// Appends the slots of the ranks of one node. `on_gpu[rank][slot]`: whether the slot is a GPU.
void add_slots(const MappedNode& node, int number, int first_rank, std::span<const std::vector<bool>> on_gpu,
               std::vector<Slot>& slots) {
  std::vector<RankOnHost> ranks_on_host;
  std::vector<RankWithGpus> ranks_with_gpus;
  for (const std::vector<bool>& workers : on_gpu) {
    ranks_on_host.push_back({node.topology.binding(), static_cast<int>(workers.size())});
    ranks_with_gpus.push_back({node.gpus, static_cast<int>(std::ranges::count(workers, true))});
    if (node.gpus.empty() && ranks_with_gpus.back().workers > 0)
      throw InputError(fmt::format("runtime.device: cuda: {} has no GPU", node.name));
  }
  const std::vector<std::vector<Device>> shared = divide_gpus(ranks_with_gpus);
  for (std::size_t rank = 0; rank < ranks_on_host.size(); ++rank) {
    std::vector<std::optional<Device>> gpus(on_gpu[rank].size());
    auto gpu = shared[rank].begin();
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      if (on_gpu[rank][i]) gpus[i] = *gpu++;
    }
    const CoreShare share = near_gpus(node.topology, node.topology.share(ranks_on_host, rank), gpus);
    const std::vector<Device> devices = slot_devices(node.topology, share, gpus, ranks_on_host[rank].workers);
    const std::vector<unsigned>& pus = share.worker_pus;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      Slot& slot = slots.emplace_back(Slot{number, devices[i], {}});
      slot.device.host = std::to_string(number);
      slot.device.rank = first_rank + static_cast<int>(rank);
      if (i < pus.size()) slot.pu = pus[i];
    }
  }
}

std::vector<Slot> slots_of(std::span<const MappedNode> nodes, const MappingRequest& request,
                           const RuntimeConfig& config, int workers) {
  const int count = static_cast<int>(nodes.size());
  const int ranks = request.ranks > 0 ? request.ranks : count;
  if (ranks < count)
    throw InputError(
        fmt::format("--ranks: {} ranks for {} nodes, so some nodes would have no rank", ranks, count));
  const WorkerMap linear(workers, ranks);
  const WorkerMap blocks(ranks, count);  // of ranks on nodes
  std::vector<Slot> slots = {};
  for (int node = 0; node < count; ++node) {
    std::vector<std::vector<bool>> on_gpu;
    for (int rank = blocks.first(node); rank < blocks.first(node + 1); ++rank) {
      on_gpu.emplace_back();
      for (int w = linear.first(rank); w < linear.first(rank + 1); ++w)
        on_gpu.back().push_back(config.on_gpu(w));
    }
    add_slots(nodes[index(node)], node, blocks.first(node), on_gpu, slots);
  }
  return slots;
}

std::vector<Device> devices_of(std::span<const Slot> slots, std::span<const int> mapping) {
  std::vector<Device> devices;
  for (const int slot : mapping) devices.push_back(slots[index(slot)].device);
  return devices;
}

}  // namespace

MappedWorkers map_configured_workers(const Config& config, const MappingRequest& request) {
  const PlannedRun run = plan_run(config);
  const int workers = run.schedule.workers();
  MappedWorkers mapped{.schedule = run.schedule,
                       .automatic = config.runtime.mapping == MappingKind::automatic,
                       .nodes = nodes_of(request, config.runtime.uses_gpus()),
                       .slots = {},
                       .mapping = std::vector<int>(index(workers)),
                       .traffic = plan::count_traffic(run.schedule, run.costs)};
  mapped.slots = slots_of(mapped.nodes, request, config.runtime, workers);
  std::iota(mapped.mapping.begin(), mapped.mapping.end(), 0);
  const std::vector<Device> linear = devices_of(mapped.slots, mapped.mapping);
  mapped.linear_seconds = link_seconds(linear, mapped.traffic);
  if (mapped.automatic) mapped.mapping = map_workers(linear, mapped.traffic);
  mapped.seconds = link_seconds(devices_of(mapped.slots, mapped.mapping), mapped.traffic);
  return mapped;
}

}  // namespace starpipe::runtime
