// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/host/hardware.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

/// The connection between two devices, nearest first.
enum class LinkKind : std::uint8_t {
  same,         // one device: no data move
  nvlink,       // GPU to GPU
  cache,        // cores that share one
  pcie_switch,  // two GPUs below one bridge of a PCI hierarchy, other than the host bridge
  host_bridge,  // two GPUs below one host bridge, or a GPU and a core near the GPU's host bridge
  numa,         // devices in, or nearest to, the same NUMA node
  host,         // across NUMA nodes
  network,
};

/// "NVLink", "PCIe switch", "across NUMA nodes", ...
std::string_view to_string(LinkKind kind);

struct DeviceLink {
  LinkKind kind = LinkKind::network;
  /// GB/s. hwloc tells NVLink's; the others are typical of their kind, and only their order matters. Between
  /// two ranks of a host it is half of that: messages are copied on their way from process to process.
  double bandwidth = 0;
};

DeviceLink link_between(const Device& a, const Device& b);

/// Returns the seconds that all messages of a step take sequentially on their links. `devices`: by worker. If
/// no message has bytes, each counts as one byte.
double link_seconds(std::span<const Device> devices, std::span<const plan::Traffic> traffic);

}  // namespace starpipe::runtime
