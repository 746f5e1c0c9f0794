// SPDX-License-Identifier: Apache-2.0
// describe_mapping() of info.hpp.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "plan/formats/json_value.hpp"
#include "runtime/host/cuda_devices.hpp"
#include "runtime/host/gpu_share.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/locality.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/host/worker_map.hpp"
#include "runtime/report/info.hpp"
#include "runtime/setup/experiment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {
namespace {

/// One worker's position in its rank.
struct Slot {
  int node;                    ///< index of the node
  Device device;               ///< of the rank
  std::optional<unsigned> pu;  ///< of the thread that works or drives a GPU; nullopt if it is not bound
};

struct MappedNode {
  std::string name;
  Topology topology;
  std::vector<Device> gpus;
};

/// The workers of the configured schedule on the devices of the nodes, and the cost of their messages.
struct MappedWorkers {
  plan::Schedule schedule;
  MappingKind kind;  ///< `runtime.mapping`
  std::vector<MappedNode> nodes;
  std::vector<RankLocation> ranks;     ///< [rank]
  std::vector<Slot> slots;             ///< of all ranks, in the order of ranks
  std::vector<int> mapping;            ///< [worker]: index in `slots`
  std::vector<plan::Traffic> traffic;  ///< between workers, of a step
  double seconds = 0;                  ///< per step on links, with sequential messages
  double linear_seconds = 0;           ///< the same under the linear mapping

  [[nodiscard]] const Slot& slot_of(int worker) const { return slots[index(mapping[index(worker)])]; }
  [[nodiscard]] DeviceLink link_of(const plan::Traffic& pair) const {
    return link_between(slot_of(pair.from).device, slot_of(pair.to).device);
  }
};

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
    mapped.ranks.push_back(location_of(node.name, node.topology, binding, share, workers, ranks, devices));
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

std::vector<Device> devices_of(std::span<const Slot> slots, std::span<const int> mapping) {
  std::vector<Device> devices;
  for (const int slot : mapping) devices.push_back(slots[index(slot)].device);
  return devices;
}

/// Maps the workers of the configured schedule to the nodes of `request`. Throws InputError as
/// describe_mapping() does.
MappedWorkers map_configured_workers(const Config& config, const MappingRequest& request) {
  const Experiment run = plan_run(config);
  const int workers = run.schedule.workers();
  MappedWorkers mapped{.schedule = run.schedule,
                       .kind = config.runtime.mapping,
                       .nodes = nodes_of(request, config.runtime.uses_gpus()),
                       .ranks = {},
                       .slots = {},
                       .mapping = std::vector<int>(index(workers)),
                       .traffic = plan::count_traffic(run.schedule, run.costs)};
  set_ranks(request, config.runtime, mapped);
  std::iota(mapped.mapping.begin(), mapped.mapping.end(), 0);
  const std::vector<Device> linear = devices_of(mapped.slots, mapped.mapping);
  mapped.linear_seconds = link_seconds(linear, mapped.traffic);
  if (mapped.kind == MappingKind::automatic) mapped.mapping = map_workers(linear, mapped.traffic);
  const WorkerMap map(static_cast<int>(mapped.ranks.size()), mapped.mapping);
  for (std::size_t rank = 0; rank < mapped.ranks.size(); ++rank)
    mapped.ranks[rank].logical_workers = map.workers_of(static_cast<int>(rank));
  mapped.seconds = link_seconds(devices_of(mapped.slots, mapped.mapping), mapped.traffic);
  return mapped;
}

TableRow device_row(const Slot& slot, int worker) {
  std::string thread = slot.device.pci;
  if (slot.pu && slot.device.kind == DeviceKind::gpu) thread += "  driven from ";
  if (slot.pu) thread += fmt::format("PU {}", *slot.pu);
  return {fmt::format("    worker {}", worker), slot.device.name, fmt::format("rank {}", slot.device.rank),
          thread};
}

/// Returns the workers, grouped by node and by NUMA node.
std::string drawing(const MappedWorkers& mapped) {
  std::map<std::pair<int, std::string>, std::vector<int>> groups;
  for (int worker = 0; worker < mapped.schedule.workers(); ++worker) {
    const Slot& slot = mapped.slot_of(worker);
    groups[{slot.node, slot.device.numa}].push_back(worker);
  }
  // Least widths, so that the tables of all groups line up.
  constexpr std::array columns = {TableColumn{Align::left, 14}, TableColumn{Align::left, 9},
                                  TableColumn{Align::left, 8}, TableColumn{Align::left}};
  std::string text;
  int last_node = -1;
  for (auto& [where, workers] : groups) {
    const auto& [node, numa] = where;
    if (node != last_node) text += mapped.nodes[index(node)].name + "\n";
    last_node = node;
    text += fmt::format("  NUMA {}\n", numa.empty() ? "unknown" : numa);
    std::ranges::sort(workers, {}, [&](int worker) {
      return std::pair(mapped.slot_of(worker).device.number, mapped.mapping[index(worker)]);
    });
    std::vector<TableRow> rows;
    for (const int worker : workers) rows.push_back(device_row(mapped.slot_of(worker), worker));
    text += table_text(rows, columns);
  }
  return text;
}

std::string link_text(const DeviceLink& link) {
  if (link.kind != LinkKind::nvlink) return std::string(to_string(link.kind));
  return fmt::format("NVLink, {:.0f} GB/s", link.bandwidth);
}

std::string traffic_text(const MappedWorkers& mapped) {
  constexpr std::array pair_columns = {TableColumn{Align::left, 12}, TableColumn{Align::right, 8},
                                       TableColumn{Align::right, 12}, TableColumn{Align::left}};
  constexpr std::array kind_columns = {TableColumn{Align::left, 20}, TableColumn{Align::right, 19}};
  std::vector<TableRow> pairs = {{"from    to", "messages", "bytes", "link"}};
  std::map<LinkKind, std::uint64_t> bytes_by_kind;
  for (const plan::Traffic& pair : mapped.traffic) {
    const DeviceLink link = mapped.link_of(pair);
    bytes_by_kind[link.kind] += pair.sent.bytes;
    pairs.push_back({fmt::format("{:>4} -> {:<4}", pair.from, pair.to), std::to_string(pair.sent.count),
                     bytes_text(pair.sent.bytes), link_text(link)});
  }
  std::vector<TableRow> kinds;
  for (const auto& [kind, bytes] : bytes_by_kind)
    kinds.push_back({std::string(to_string(kind)), bytes_text(bytes) + " per step"});
  return table_text(pairs, pair_columns) + "\n" + table_text(kinds, kind_columns);
}

std::string text_of(const MappedWorkers& mapped) {
  std::string text =
      fmt::format("{}: {} workers, mapping {}\n\n{}\n{}\n", mapped.schedule.name(), mapped.schedule.workers(),
                  mapping_words[index(mapped.kind)], drawing(mapped), rank_table(mapped.ranks));
  if (mapped.traffic.empty()) return text + "No worker sends data to another.\n";
  text += traffic_text(mapped);
  text += fmt::format(
      "\n{:.3f} ms per step on links, if messages follow one another at the typical bandwidth of each link",
      mapped.seconds * 1e3);
  if (mapped.kind == MappingKind::automatic)
    return text + fmt::format("; linear {:.3f} ms\n", mapped.linear_seconds * 1e3);
  return text + "\n";
}

nlohmann::ordered_json json_of(const MappedWorkers& mapped) {
  nlohmann::ordered_json json = {
      {"schedule", mapped.schedule.name()},      {"mapping", mapping_words[index(mapped.kind)]},
      {"link_seconds", mapped.seconds},          {"link_seconds_linear", mapped.linear_seconds},
      {"ranks", ranks_json(mapped.ranks)},       {"workers", nlohmann::ordered_json::array()},
      {"flows", nlohmann::ordered_json::array()}};
  for (int worker = 0; worker < mapped.schedule.workers(); ++worker) {
    const Slot& slot = mapped.slot_of(worker);
    nlohmann::ordered_json one = {{"worker", worker},
                                  {"node", slot.node},
                                  {"rank", slot.device.rank},
                                  {"device", slot.device.name},
                                  {"numa", slot.device.numa}};
    if (!slot.device.pci.empty()) one["pci"] = slot.device.pci;
    if (slot.pu) one["pu"] = *slot.pu;
    json["workers"].push_back(std::move(one));
  }
  for (const plan::Traffic& pair : mapped.traffic) {
    const DeviceLink link = mapped.link_of(pair);
    nlohmann::ordered_json one = {{"from", pair.from},
                                  {"to", pair.to},
                                  {"count", pair.sent.count},
                                  {"bytes", pair.sent.bytes},
                                  {"link", to_string(link.kind)}};
    if (link.kind == LinkKind::nvlink) one["bandwidth"] = link.bandwidth;
    json["flows"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

std::string describe_mapping(const Config& config, const MappingRequest& request, bool json) {
  const MappedWorkers mapped = map_configured_workers(config, request);
  return json ? plan::json_text(json_of(mapped)) : text_of(mapped);
}

}  // namespace starpipe::runtime
