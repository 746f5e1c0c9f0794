// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/mapped_workers.hpp"

#include <algorithm>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "runtime/host/cuda_devices.hpp"
#include "runtime/host/gpu_division.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/locality.hpp"
#include "runtime/host/assignment.hpp"
#include "runtime/host/worker_map.hpp"
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

/// Appends the ranks of one node, and their slots. `ranks`: of all nodes. `on_gpu[rank][slot]`: whether the
/// slot is a GPU.
void add_ranks(const MappedNode& node, int number, int ranks, std::span<const std::vector<bool>> on_gpu,
               MappedWorkers& mapped) {
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
    const std::string& binding = ranks_on_host[rank].binding;
    const int workers = ranks_on_host[rank].workers;
    const std::vector<Device> devices = slot_devices(node.topology, share, gpus, workers);
    RankLocation& location =
        mapped.ranks.emplace_back(RankLocation{.machine = node.name,
                                               .binding = share.binding,
                                               .bound_by = bound_by(node.topology, binding, share),
                                               .cores = node.topology.cores(share.binding),
                                               .workers = workers,
                                               .bound = !share.worker_pus.empty(),
                                               .mpi_thread = mpi_thread_place(node.topology, share, ranks),
                                               .logical_workers = {},
                                               .devices = {}});
    for (const Device& device : devices) location.devices.push_back(device.name);
    const std::vector<unsigned>& pus = share.worker_pus;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      Slot& slot = mapped.slots.emplace_back(Slot{number, devices[i], {}});
      slot.device.host = std::to_string(number);
      slot.device.rank = static_cast<int>(std::ssize(mapped.ranks)) - 1;
      if (i < pus.size()) slot.pu = pus[i];
    }
  }
}

/// Sets the ranks and their slots.
void set_ranks(const MappingRequest& request, const RuntimeConfig& config, MappedWorkers& mapped) {
  const int workers = mapped.schedule.workers();
  const int count = static_cast<int>(mapped.nodes.size());
  const int ranks = request.ranks > 0 ? request.ranks : count;
  if (ranks < count)
    throw InputError(
        fmt::format("--ranks: {} ranks for {} nodes, so some nodes would have no rank", ranks, count));
  const WorkerMap linear(workers, ranks);
  const WorkerMap blocks(ranks, count);  // of ranks on nodes
  for (int node = 0; node < count; ++node) {
    std::vector<std::vector<bool>> on_gpu;
    for (int rank = blocks.first(node); rank < blocks.first(node + 1); ++rank) {
      on_gpu.emplace_back();
      for (int w = linear.first(rank); w < linear.first(rank + 1); ++w)
        on_gpu.back().push_back(config.on_gpu(w));
    }
    add_ranks(mapped.nodes[index(node)], node, ranks, on_gpu, mapped);
  }
}

/// Sets which workers each rank has, by slot.
void set_workers_of_ranks(MappedWorkers& mapped) {
  std::vector<int> workers(mapped.mapping.size());  // [slot]
  for (std::size_t worker = 0; worker < mapped.mapping.size(); ++worker)
    workers[index(mapped.mapping[worker])] = static_cast<int>(worker);
  for (std::size_t slot = 0; slot < workers.size(); ++slot)
    mapped.ranks[index(mapped.slots[slot].device.rank)].logical_workers.push_back(workers[slot]);
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
                       .ranks = {},
                       .slots = {},
                       .mapping = std::vector<int>(index(workers)),
                       .traffic = plan::count_traffic(run.schedule, run.costs)};
  set_ranks(request, config.runtime, mapped);
  std::iota(mapped.mapping.begin(), mapped.mapping.end(), 0);
  const std::vector<Device> linear = devices_of(mapped.slots, mapped.mapping);
  mapped.linear_seconds = link_seconds(linear, mapped.traffic);
  if (mapped.automatic) mapped.mapping = map_workers(linear, mapped.traffic);
  set_workers_of_ranks(mapped);
  mapped.seconds = link_seconds(devices_of(mapped.slots, mapped.mapping), mapped.traffic);
  return mapped;
}

}  // namespace starpipe::runtime
