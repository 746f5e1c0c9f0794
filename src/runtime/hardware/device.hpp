// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace starpipe::runtime {

enum class DeviceKind : std::uint8_t { core, gpu };

/// A core or GPU that a worker runs on, with everything that its distance to another device follows from: so
/// ranks can tell each other of their devices.
struct Device {
  DeviceKind kind = DeviceKind::core;
  std::string host;  ///< tells hosts apart
  int rank = 0;      ///< the rank that uses it
  std::string name;  ///< for people: "core 3", "cuda0"
  /// Of a core: its first PU in hwloc's logical numbering. Of a GPU: CUDA's number, or its position by PCI
  /// address where CUDA has none. -1: a worker that floats over the cores of its rank.
  int number = -1;
  std::string numa;   ///< the nearest NUMA nodes, as a list of the system's numbers; empty: unknown
  std::string cache;  ///< of a core: the PUs below the largest cache above it; empty: no shared cache
  std::string pci;    ///< of a GPU: its address ("0000:3b:00.0")
  /// Of a GPU: the PCI bridges above it, the host bridge first. Of a core: the host bridges of the part of
  /// the machine that it is in.
  std::vector<std::string> bridges;
  std::map<std::string, double> nvlink;  ///< of a GPU: GB/s to others, by their PCI address

  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace starpipe::runtime
