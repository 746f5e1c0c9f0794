// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/link.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// GB/s, typical of nodes of about 2024. A mapping depends on their order more than on their values.
double typical_bandwidth(LinkKind kind) {
  switch (kind) {
    case LinkKind::same:
      return std::numeric_limits<double>::infinity();
    case LinkKind::nvlink:
      return 100;
    case LinkKind::cache:
      return 40;
    case LinkKind::pcie_switch:
      return 25;
    case LinkKind::host_bridge:
      return 20;
    case LinkKind::numa:
      return 16;
    case LinkKind::host:
      return 10;
    case LinkKind::network:
      return 5;
  }
  return 1;
}

bool is_same(const Device& a, const Device& b) {
  if (a.kind != b.kind) return false;
  return a.kind == DeviceKind::gpu ? a.pci == b.pci : a.number >= 0 && a.number == b.number;
}

std::size_t common_bridges(const Device& a, const Device& b) {
  const auto ends = std::ranges::mismatch(a.bridges, b.bridges);
  return static_cast<std::size_t>(ends.in1 - a.bridges.begin());
}

// hwloc may know the link from either side only.
double nvlink_between(const Device& a, const Device& b) {
  double bandwidth = 0;
  if (const auto there = a.nvlink.find(b.pci); there != a.nvlink.end()) bandwidth = there->second;
  if (const auto back = b.nvlink.find(a.pci); back != b.nvlink.end())
    bandwidth = std::max(bandwidth, back->second);
  return bandwidth;
}

// True if the GPU's PCI hierarchy begins in the part of the machine where the core is.
bool begins_at(const Device& gpu, const Device& core) {
  return gpu.kind == DeviceKind::gpu && core.kind == DeviceKind::core && !gpu.bridges.empty() &&
         std::ranges::find(core.bridges, gpu.bridges.front()) != core.bridges.end();
}

LinkKind kind_on_host(const Device& a, const Device& b, bool nvlink) {
  if (is_same(a, b)) return LinkKind::same;
  if (nvlink) return LinkKind::nvlink;
  if (a.kind == DeviceKind::gpu && b.kind == DeviceKind::gpu) {
    const std::size_t common = common_bridges(a, b);
    if (common > 1) return LinkKind::pcie_switch;
    if (common == 1) return LinkKind::host_bridge;
  }
  if (begins_at(a, b) || begins_at(b, a)) return LinkKind::host_bridge;
  if (!a.cache.empty() && a.cache == b.cache) return LinkKind::cache;
  return !a.numa.empty() && a.numa == b.numa ? LinkKind::numa : LinkKind::host;
}

}  // namespace

std::string_view to_string(LinkKind kind) {
  switch (kind) {
    case LinkKind::same:
      return "same device";
    case LinkKind::nvlink:
      return "NVLink";
    case LinkKind::cache:
      return "shared cache";
    case LinkKind::pcie_switch:
      return "PCIe switch";
    case LinkKind::host_bridge:
      return "PCIe host bridge";
    case LinkKind::numa:
      return "NUMA node";
    case LinkKind::host:
      return "across NUMA nodes";
    case LinkKind::network:
      return "network";
  }
  return "?";
}

DeviceLink link_between(const Device& a, const Device& b) {
  if (a.host != b.host) return {LinkKind::network, typical_bandwidth(LinkKind::network)};
  const double nvlink = nvlink_between(a, b);
  const LinkKind kind = kind_on_host(a, b, nvlink > 0);
  const double bandwidth = kind == LinkKind::nvlink ? nvlink : typical_bandwidth(kind);
  if (a.rank == b.rank) return {kind, bandwidth};
  // Messages are copied, even within one GPU.
  return {kind, (kind == LinkKind::same ? typical_bandwidth(LinkKind::nvlink) : bandwidth) / 2};
}

double link_seconds(std::span<const Device> devices, std::span<const plan::Traffic> traffic) {
  const bool sized =
      std::ranges::any_of(traffic, [](const plan::Traffic& pair) { return pair.sent.bytes > 0; });
  double seconds = 0;
  for (const plan::Traffic& pair : traffic) {
    const DeviceLink link = link_between(devices[index(pair.from)], devices[index(pair.to)]);
    seconds += static_cast<double>(sized ? pair.sent.bytes : pair.sent.count) / (link.bandwidth * 1e9);
  }
  return seconds;
}

}  // namespace starpipe::runtime
