// SPDX-License-Identifier: Apache-2.0
// Which device of which rank runs which logical worker, so that those who send each other much are near.
// Knows no StarPU, no MPI and no hwloc: hardware.hpp describes the devices, plan::count_traffic the messages.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {

enum class DeviceKind : std::uint8_t { core, gpu };

/// What a worker runs on. Everything that its distance to another one follows from, so that ranks can tell
/// each other of theirs.
struct Device {
  DeviceKind kind = DeviceKind::core;
  std::string host;  ///< tells hosts apart
  int rank = 0;      ///< whose worker has it
  std::string name;  ///< for people: "core 3", "cuda0"
  /// Of a core: its first PU in hwloc's logical numbering. Of a GPU: CUDA's number, or its place by PCI
  /// address where CUDA has none. -1: a worker that floats over the cores of its rank.
  int number = -1;
  std::string numa;   ///< the NUMA nodes that it is near, as a list of the system's numbers; empty: unknown
  std::string cache;  ///< of a core: the largest cache that it is under, if there is one
  std::string pci;    ///< of a GPU: its address ("0000:3b:00.0")
  /// Of a GPU: those above it, the host bridge first. Of a core: the host bridges of the part of the machine
  /// that it is in.
  std::vector<std::string> bridges;
  std::map<std::string, double> nvlink;  ///< of a GPU: GB/s to others, by their PCI address

  friend bool operator==(const Device&, const Device&) = default;
};

/// What lies between two devices, nearest first.
enum class LinkKind : std::uint8_t {
  same,         // one device: nothing moves
  nvlink,       // GPU to GPU
  cache,        // cores that share one
  pcie_switch,  // below one bridge of a PCI hierarchy
  host_bridge,  // the same PCI hierarchy, or a core where it begins
  numa,         // the same NUMA node, and what is near it
  host,         // across NUMA nodes
  network,
};

/// "NVLink", "PCIe switch", "across NUMA nodes", ...
std::string_view to_string(LinkKind kind);

struct Link {
  LinkKind kind = LinkKind::network;
  /// GB/s; NVLink's as hwloc has it, else typical of the kind: their order matters. Half of it between two
  /// ranks of a host: messages are copied on their way from process to process.
  double bandwidth = 0;
};

Link link_between(const Device& a, const Device& b);

/// Seconds that all messages of a step take on their links, one after the other. `devices`: by worker. Where
/// no message has bytes, each counts for one.
double link_seconds(std::span<const Device> devices, std::span<const plan::Traffic> traffic);

/// By worker: which of `devices` it should run on, each taken by one, for the least `link_seconds`. Worker w
/// is of the kind of device w, core or GPU, and gets no other; that very one unless others are better, so
/// never worse than that. The best there is for up to `exact_mapping` workers; beyond, improved from several
/// starts within a fixed number of tries. Deterministic.
std::vector<int> map_workers(std::span<const Device> devices, std::span<const plan::Traffic> traffic);

inline constexpr std::size_t exact_mapping = 9;

/// A rank of a host that has GPUs.
struct GpuTenant {
  std::vector<Device> visible;  ///< GPUs that the launcher lets it see
  int workers = 1;              ///< logical
};

/// By rank of a host: the GPU of each of its places, by number. Ranks that see the same GPUs divide them into
/// blocks of near ones, in proportion to their workers; ranks that see others have those. Where there are
/// more workers than GPUs, several share one; where there are fewer, the GPUs nearest to each other are
/// taken.
std::vector<std::vector<Device>> share_gpus(std::span<const GpuTenant> ranks);

}  // namespace starpipe::runtime
