// SPDX-License-Identifier: Apache-2.0
#include "runtime/hardware/link.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <tuple>

namespace starpipe::runtime {
namespace {

// GB/s, as nodes of about 2024 have them. A mapping depends on their order more than on their values.
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

// Either may be the one whose side hwloc has.
double nvlink_between(const Device& a, const Device& b) {
  double bandwidth = 0;
  if (const auto there = a.nvlink.find(b.pci); there != a.nvlink.end()) bandwidth = there->second;
  if (const auto back = b.nvlink.find(a.pci); back != b.nvlink.end())
    bandwidth = std::max(bandwidth, back->second);
  return bandwidth;
}

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

// Where there are more GPUs than workers: as many neighbours as are needed, those that are nearest to each
// other; of equals the first.
std::vector<Device> nearest(const std::vector<Device>& gpus, std::size_t count) {
  if (gpus.size() <= count) return gpus;
  std::size_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t first = 0; first + count <= gpus.size(); ++first) {
    double far = 0;
    for (std::size_t a = first; a < first + count; ++a) {
      for (std::size_t b = a + 1; b < first + count; ++b) far += 1 / link_between(gpus[a], gpus[b]).bandwidth;
    }
    if (far >= least) continue;
    least = far;
    best = first;
  }
  const auto begin = gpus.begin() + static_cast<std::ptrdiff_t>(best);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

auto near_order(const Device& gpu) { return std::tie(gpu.numa, gpu.bridges, gpu.pci); }

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

Link link_between(const Device& a, const Device& b) {
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
    const Link link = link_between(devices[static_cast<std::size_t>(pair.from)],
                                   devices[static_cast<std::size_t>(pair.to)]);
    seconds += static_cast<double>(sized ? pair.sent.bytes : pair.sent.count) / (link.bandwidth * 1e9);
  }
  return seconds;
}

std::vector<std::vector<Device>> share_gpus(std::span<const GpuTenant> ranks) {
  std::vector<std::vector<Device>> places(ranks.size());
  std::vector<bool> done(ranks.size(), false);
  for (std::size_t first = 0; first < ranks.size(); ++first) {
    if (done[first]) continue;
    std::vector<Device> gpus = ranks[first].visible;
    std::ranges::sort(gpus, {}, near_order);
    std::vector<std::size_t> sharing;
    std::size_t workers = 0;
    for (std::size_t rank = first; rank < ranks.size(); ++rank) {
      std::vector<Device> theirs = ranks[rank].visible;
      std::ranges::sort(theirs, {}, near_order);
      if (!std::ranges::equal(theirs, gpus, {}, &Device::pci, &Device::pci)) continue;
      sharing.push_back(rank);
      workers += static_cast<std::size_t>(ranks[rank].workers);
    }
    gpus = nearest(gpus, workers);
    std::size_t place = 0;
    for (const std::size_t rank : sharing) {
      done[rank] = true;
      // Its own numbers: CUDA counts what a process sees.
      for (int i = 0; i < ranks[rank].workers && !gpus.empty(); ++i, ++place) {
        const std::size_t at = place * gpus.size() / workers;
        places[rank].push_back(*std::ranges::find(ranks[rank].visible, gpus[at].pci, &Device::pci));
      }
      std::ranges::stable_sort(places[rank], {}, &Device::number);
    }
  }
  return places;
}

}  // namespace starpipe::runtime
