// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/report/mapping_report.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/hardware/cuda_devices.hpp"
#include "runtime/hardware/gpu_division.hpp"
#include "runtime/hardware/hardware.hpp"
#include "runtime/hardware/link.hpp"
#include "runtime/hardware/locality.hpp"
#include "runtime/hardware/mapping.hpp"
#include "runtime/session/worker_map.hpp"
#include "runtime/setup/planned_run.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/numbers.hpp"
#include "starpipe/base/table.hpp"

namespace starpipe::runtime {
namespace {

/// The device of a rank for one of its workers.
struct Place {
  int node;
  Device device;
  std::optional<unsigned> pu;  ///< of the thread that works, or drives a GPU; nothing when it floats
};

struct Node {
  std::string name;
  Topology topology;
  std::vector<Device> gpus;
};

std::vector<Node> nodes_of(const MappingRequest& request, bool gpus) {
  std::vector<Node> nodes;
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

/// Of the ranks of one node, by place. `on_gpu`: by worker of each rank.
void add_places(const Node& node, int number, int first_rank, std::span<const std::vector<bool>> on_gpu,
                std::vector<Place>& places) {
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
      Place& place = places.emplace_back(Place{number, devices[i], {}});
      place.device.host = std::to_string(number);
      place.device.rank = first_rank + static_cast<int>(rank);
      if (i < pus.size()) place.pu = pus[i];
    }
  }
}

std::vector<Place> places_of(std::span<const Node> nodes, const MappingRequest& request,
                             const RuntimeConfig& config, int workers) {
  const int count = static_cast<int>(nodes.size());
  const int ranks = request.ranks > 0 ? request.ranks : count;
  if (ranks < count)
    throw InputError(
        fmt::format("--ranks: {} ranks for {} nodes, so some nodes would have no rank", ranks, count));
  if (ranks > workers) {
    throw InputError(
        fmt::format("schedule.workers: {} ranks for {} workers, some ranks would have none", ranks, workers));
  }
  const WorkerMap linear(workers, ranks);
  const WorkerMap blocks(ranks, count);  // of ranks on nodes
  std::vector<Place> places = {};
  for (int node = 0; node < count; ++node) {
    std::vector<std::vector<bool>> on_gpu;
    for (int rank = blocks.first(node); rank < blocks.first(node + 1); ++rank) {
      on_gpu.emplace_back();
      for (int w = linear.first(rank); w < linear.first(rank + 1); ++w)
        on_gpu.back().push_back(config.on_gpu(w));
    }
    add_places(nodes[index(node)], node, blocks.first(node), on_gpu, places);
  }
  return places;
}

std::vector<Device> devices_of(std::span<const Place> places, std::span<const int> mapping) {
  std::vector<Device> devices;
  for (const int place : mapping) devices.push_back(places[index(place)].device);
  return devices;
}

/// The workers of a configuration on their devices.
struct Mapped {
  const Config& config;
  const plan::Schedule& schedule;
  std::vector<Node> nodes;
  std::vector<Place> places = {};
  std::vector<int> mapping = {};  ///< of each worker: index in `places`
  std::vector<plan::Traffic> traffic = {};
  double seconds = 0;  ///< on links
  double linear_seconds = 0;

  [[nodiscard]] const Place& place_of(int worker) const { return places[index(mapping[index(worker)])]; }
  [[nodiscard]] Link link_of(const plan::Traffic& pair) const {
    return link_between(place_of(pair.from).device, place_of(pair.to).device);
  }
  [[nodiscard]] bool is_auto() const { return config.runtime.mapping == MappingKind::automatic; }
};

std::string device_text(const Place& place, int worker) {
  std::string text =
      fmt::format("worker {:<4} {:<10} rank {:<4}", worker, place.device.name, place.device.rank);
  if (!place.device.pci.empty()) text += fmt::format(" {}", place.device.pci);
  if (place.pu)
    text += fmt::format("{} PU {}", place.device.kind == DeviceKind::gpu ? "  driven from" : "", *place.pu);
  return text;
}

/// The workers, grouped by node and by NUMA node.
std::string drawing(const Mapped& mapped) {
  std::vector<int> workers(mapped.mapping.size());
  std::iota(workers.begin(), workers.end(), 0);
  std::ranges::stable_sort(workers, {}, [&](int worker) {
    const Place& place = mapped.place_of(worker);
    return std::tuple(place.node, place.device.numa, place.device.number, mapped.mapping[index(worker)]);
  });
  std::string text;
  const Place* before = nullptr;
  for (const int worker : workers) {
    const Place& place = mapped.place_of(worker);
    const bool other_node = before == nullptr || before->node != place.node;
    if (other_node) text += mapped.nodes[index(place.node)].name + "\n";
    if (other_node || before->device.numa != place.device.numa) {
      text += fmt::format("  NUMA {}\n", place.device.numa.empty() ? "unknown" : place.device.numa);
    }
    text += "    " + device_text(place, worker) + "\n";
    before = &place;
  }
  return text;
}

std::string link_text(const Link& link) {
  if (link.kind != LinkKind::nvlink) return std::string(to_string(link.kind));
  return fmt::format("NVLink, {:.0f} GB/s", link.bandwidth);
}

std::string traffic_text(const Mapped& mapped) {
  constexpr std::array pair_columns = {TableColumn{Align::left, 12}, TableColumn{Align::right, 8},
                                       TableColumn{Align::right, 12}, TableColumn{Align::left}};
  constexpr std::array kind_columns = {TableColumn{Align::left, 20}, TableColumn{Align::right, 19}};
  std::vector<TableRow> pairs = {{"from    to", "messages", "bytes", "link"}};
  std::map<LinkKind, std::uint64_t> bytes_by_kind;
  for (const plan::Traffic& pair : mapped.traffic) {
    const Link link = mapped.link_of(pair);
    bytes_by_kind[link.kind] += pair.sent.bytes;
    pairs.push_back({fmt::format("{:>4} -> {:<4}", pair.from, pair.to), std::to_string(pair.sent.count),
                     bytes_text(pair.sent.bytes), link_text(link)});
  }
  std::vector<TableRow> kinds;
  for (const auto& [kind, bytes] : bytes_by_kind)
    kinds.push_back({std::string(to_string(kind)), bytes_text(bytes) + " a step"});
  return table_text(pairs, pair_columns) + "\n" + table_text(kinds, kind_columns);
}

std::string text_of(const Mapped& mapped) {
  const std::string way = mapped.is_auto() ? "auto" : "linear";
  std::string text = fmt::format("{}: {} workers, mapping {}\n\n{}\n", mapped.schedule.name(),
                                 mapped.schedule.workers(), way, drawing(mapped));
  if (mapped.traffic.empty()) return text + "No worker sends data to another.\n";
  text += traffic_text(mapped);
  text += fmt::format(
      "\n{:.3f} ms a step on links, if messages follow one another at the typical bandwidth of each link",
      mapped.seconds * 1e3);
  if (mapped.is_auto()) return text + fmt::format("; linear {:.3f} ms\n", mapped.linear_seconds * 1e3);
  return text + "\n";
}

nlohmann::ordered_json json_of(const Mapped& mapped) {
  nlohmann::ordered_json json = {{"schedule", mapped.schedule.name()},
                                 {"mapping", mapped.is_auto() ? "auto" : "linear"},
                                 {"link_seconds", mapped.seconds},
                                 {"link_seconds_linear", mapped.linear_seconds},
                                 {"workers", nlohmann::ordered_json::array()},
                                 {"flows", nlohmann::ordered_json::array()}};
  for (int worker = 0; worker < mapped.schedule.workers(); ++worker) {
    const Place& place = mapped.place_of(worker);
    nlohmann::ordered_json one = {{"worker", worker},
                                  {"node", place.node},
                                  {"rank", place.device.rank},
                                  {"device", place.device.name},
                                  {"numa", place.device.numa}};
    if (!place.device.pci.empty()) one["pci"] = place.device.pci;
    if (place.pu) one["pu"] = *place.pu;
    json["workers"].push_back(std::move(one));
  }
  for (const plan::Traffic& pair : mapped.traffic) {
    const Link link = mapped.link_of(pair);
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
  const Plan plan = make_plan(config);
  Mapped mapped{
      .config = config, .schedule = plan.schedule, .nodes = nodes_of(request, config.runtime.uses_gpus())};
  const int workers = plan.schedule.workers();
  mapped.places = places_of(mapped.nodes, request, config.runtime, workers);
  mapped.traffic = plan::count_traffic(plan.schedule, plan.costs);
  mapped.mapping.resize(static_cast<std::size_t>(workers));
  std::iota(mapped.mapping.begin(), mapped.mapping.end(), 0);
  const std::vector<Device> linear = devices_of(mapped.places, mapped.mapping);
  mapped.linear_seconds = link_seconds(linear, mapped.traffic);
  if (mapped.is_auto()) mapped.mapping = map_workers(linear, mapped.traffic);
  mapped.seconds = link_seconds(devices_of(mapped.places, mapped.mapping), mapped.traffic);
  return json ? json_of(mapped).dump() : text_of(mapped);
}

}  // namespace starpipe::runtime
