// SPDX-License-Identifier: Apache-2.0
#include "runtime/report/mapping_report.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <string_view>
#include <tuple>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/report/mapped_workers.hpp"
#include "runtime/report/rank_table.hpp"
#include "starpipe/base/index.hpp"
#include "base/numbers.hpp"
#include "base/table.hpp"

namespace starpipe::runtime {
namespace {

TableRow device_row(const Slot& slot, int worker) {
  std::string thread = slot.device.pci;
  if (slot.pu && slot.device.kind == DeviceKind::gpu) thread += "  driven from ";
  if (slot.pu) thread += fmt::format("PU {}", *slot.pu);
  return {fmt::format("    worker {}", worker), slot.device.name, fmt::format("rank {}", slot.device.rank),
          thread};
}

/// The workers, grouped by node and by NUMA node.
std::string drawing(const MappedWorkers& mapped) {
  std::vector<int> workers(mapped.mapping.size());
  std::iota(workers.begin(), workers.end(), 0);
  std::ranges::stable_sort(workers, {}, [&](int worker) {
    const Slot& slot = mapped.slot_of(worker);
    return std::tuple(slot.node, slot.device.numa, slot.device.number, mapped.mapping[index(worker)]);
  });
  // Least widths, so that the tables of all groups line up.
  constexpr std::array columns = {TableColumn{Align::left, 14}, TableColumn{Align::left, 9},
                                  TableColumn{Align::left, 8}, TableColumn{Align::left}};
  std::string text;
  std::vector<TableRow> group;
  const auto end_group = [&] {
    text += table_text(group, columns);
    group.clear();
  };
  const Slot* before = nullptr;
  for (const int worker : workers) {
    const Slot& slot = mapped.slot_of(worker);
    const bool other_node = before == nullptr || before->node != slot.node;
    const bool other_group = other_node || before->device.numa != slot.device.numa;
    if (other_group) end_group();
    if (other_node) text += mapped.nodes[index(slot.node)].name + "\n";
    if (other_group) {
      text += fmt::format("  NUMA {}\n", slot.device.numa.empty() ? "unknown" : slot.device.numa);
    }
    group.push_back(device_row(slot, worker));
    before = &slot;
  }
  end_group();
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
    kinds.push_back({std::string(to_string(kind)), bytes_text(bytes) + " a step"});
  return table_text(pairs, pair_columns) + "\n" + table_text(kinds, kind_columns);
}

std::string_view word_of(const MappedWorkers& mapped) {
  return mapping_words[index(mapped.automatic ? MappingKind::automatic : MappingKind::linear)];
}

std::string text_of(const MappedWorkers& mapped) {
  std::string text =
      fmt::format("{}: {} workers, mapping {}\n\n{}\n{}\n", mapped.schedule.name(), mapped.schedule.workers(),
                  word_of(mapped), drawing(mapped), rank_table(mapped.ranks));
  if (mapped.traffic.empty()) return text + "No worker sends data to another.\n";
  text += traffic_text(mapped);
  text += fmt::format(
      "\n{:.3f} ms a step on links, if messages follow one another at the typical bandwidth of each link",
      mapped.seconds * 1e3);
  if (mapped.automatic) return text + fmt::format("; linear {:.3f} ms\n", mapped.linear_seconds * 1e3);
  return text + "\n";
}

nlohmann::ordered_json json_of(const MappedWorkers& mapped) {
  nlohmann::ordered_json json = {
      {"schedule", mapped.schedule.name()},      {"mapping", word_of(mapped)},
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
  return json ? json_of(mapped).dump() : text_of(mapped);
}

}  // namespace starpipe::runtime
