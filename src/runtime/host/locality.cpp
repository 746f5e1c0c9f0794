// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/locality.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "runtime/host/hwloc_objects.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

constexpr unsigned nvidia = 0x10de;
constexpr unsigned display_class = 0x03;  // VGA and 3D controllers
constexpr std::string_view cuda_prefix = "cuda";

std::string list_of(hwloc_const_bitmap_t bits) { return bits == nullptr ? "" : PuSet(bits).list(); }

std::string address(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:01x}", pci.domain, pci.bus, pci.dev, pci.func);
}

/// Returns the number in "cuda3".
std::optional<int> cuda_number(hwloc_obj_t object) {
  const std::string_view name = object->name == nullptr ? "" : object->name;
  int number = 0;
  if (object->type != HWLOC_OBJ_OS_DEVICE || !name.starts_with(cuda_prefix)) return std::nullopt;
  const auto [end, error] =
      std::from_chars(name.data() + cuda_prefix.size(), name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return number;
}

std::optional<int> cuda_number_below(hwloc_obj_t pci) {
  for (hwloc_obj_t child = pci->io_first_child; child != nullptr; child = child->next_sibling) {
    if (const auto number = cuda_number(child)) return number;
  }
  return std::nullopt;
}

std::string bridge_name(hwloc_obj_t object) {
  const hwloc_obj_attr_u::hwloc_bridge_attr_s& bridge = object->attr->bridge;
  if (bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI) return address(bridge.upstream.pci);
  // A host bridge has no address of its own.
  return fmt::format("host {:04x}:{:02x}", bridge.downstream.pci.domain, bridge.downstream.pci.secondary_bus);
}

std::vector<std::string> bridges_above(hwloc_obj_t object) {
  std::vector<std::string> bridges;
  for (hwloc_obj_t up = object->parent; up != nullptr && up->type == HWLOC_OBJ_BRIDGE; up = up->parent)
    bridges.push_back(bridge_name(up));
  std::ranges::reverse(bridges);
  return bridges;
}

/// Returns the host bridges of the part of the machine (a package, a group of cores) that has all these PUs.
std::vector<std::string> host_bridges_of(hwloc_topology_t topology, hwloc_const_bitmap_t pus) {
  std::vector<std::string> bridges;
  hwloc_obj_t bridge = nullptr;
  while ((bridge = hwloc_get_next_bridge(topology, bridge)) != nullptr) {
    if (bridge->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_HOST) continue;
    if (hwloc_bitmap_isincluded(pus, hwloc_get_non_io_ancestor_obj(topology, bridge)->cpuset) != 0)
      bridges.push_back(bridge_name(bridge));
  }
  return bridges;
}

/// Returns the PCI address of a PCI device, or of the PCI device that an OS device belongs to; empty for any
/// other object, such as a switch.
std::string address_of(hwloc_obj_t object) {
  while (object != nullptr && object->type == HWLOC_OBJ_OS_DEVICE) object = object->parent;
  return object != nullptr && object->type == HWLOC_OBJ_PCI_DEVICE ? address(object->attr->pcidev) : "";
}

/// hwloc's matrices of NVLink's bandwidths, in MB/s, held during this object's lifetime.
class NvlinkMatrices {
 public:
  explicit NvlinkMatrices(hwloc_topology_t topology) : topology_(topology) {
    auto count = static_cast<unsigned>(matrices_.size());
    if (hwloc_distances_get_by_name(topology, "NVLinkBandwidth", &count, matrices_.data(), 0) != 0) count = 0;
    count_ = std::min<std::size_t>(count, matrices_.size());
    for (std::size_t m = 0; m < count_; ++m) {
      // The closure links GPUs that share an NVLink switch. Without a switch it would leave no link at all.
      const bool switches =
          hwloc_distances_transform(topology, matrices_[m], HWLOC_DISTANCES_TRANSFORM_MERGE_SWITCH_PORTS,
                                    nullptr, 0) == 0;
      if (!switches) continue;
      hwloc_distances_transform(topology, matrices_[m], HWLOC_DISTANCES_TRANSFORM_TRANSITIVE_CLOSURE, nullptr,
                                0);
    }
  }
  ~NvlinkMatrices() {
    for (std::size_t m = 0; m < count_; ++m) hwloc_distances_release(topology_, matrices_[m]);
  }
  NvlinkMatrices(const NvlinkMatrices&) = delete;
  NvlinkMatrices& operator=(const NvlinkMatrices&) = delete;

  void add_to(Device& gpu) const {
    for (std::size_t m = 0; m < count_; ++m) {
      const hwloc_distances_s& matrix = *matrices_[m];
      for (unsigned row = 0; row < matrix.nbobjs; ++row) {
        if (address_of(matrix.objs[row]) != gpu.pci) continue;
        for (unsigned column = 0; column < matrix.nbobjs; ++column) {
          const hwloc_uint64_t megabytes = matrix.values[row * matrix.nbobjs + column];
          const std::string other = address_of(matrix.objs[column]);
          if (megabytes == 0 || other.empty() || other == gpu.pci) continue;
          gpu.nvlink[other] = static_cast<double>(megabytes) / 1000;
        }
      }
    }
  }

 private:
  hwloc_topology_t topology_;
  std::array<hwloc_distances_s*, 4> matrices_{};
  std::size_t count_ = 0;
};

/// Returns the PUs below the largest cache above a PU that does not reach beyond the PU's NUMA nodes.
std::string cache_above(hwloc_obj_t pu) {
  std::string cache;
  for (hwloc_obj_t up = pu->parent; up != nullptr; up = up->parent) {
    if (hwloc_obj_type_is_dcache(up->type) != 0 && hwloc_bitmap_isequal(up->nodeset, pu->nodeset) != 0) {
      cache = list_of(up->cpuset);
    }
  }
  return cache;
}

}  // namespace

std::vector<Device> core_devices(const Topology& topology, const CoreShare& share, int slots) {
  std::vector<Device> devices;
  const PuSet pus(share.binding);
  const PuSet nodes;
  hwloc_cpuset_to_nodeset(topology.get(), pus.get(), nodes.get());
  for (int slot = 0; slot < slots; ++slot) {
    Device& device = devices.emplace_back();
    device.kind = DeviceKind::core;
    device.name = "any core";
    device.numa = nodes.list();
    device.bridges = host_bridges_of(topology.get(), pus.get());
    if (share.worker_pus.empty()) continue;
    const unsigned number = share.worker_pus[index(slot)];
    const hwloc_obj_t pu = hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_PU, number);
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_CORE, pu);
    device.number = static_cast<int>(number);
    device.name = fmt::format("core {}", core != nullptr ? core->logical_index : number);
    device.numa = list_of(pu->nodeset);
    device.cache = cache_above(pu);
    device.bridges = host_bridges_of(topology.get(), pu->cpuset);
  }
  return devices;
}

std::vector<Device> find_gpus(const Topology& host) {
  std::vector<Device> gpus;
  const hwloc_topology_t topology = host.get();
  const NvlinkMatrices nvlink(topology);
  hwloc_obj_t pci = nullptr;
  while ((pci = hwloc_get_next_pcidev(topology, pci)) != nullptr) {
    const hwloc_obj_attr_u::hwloc_pcidev_attr_s& attributes = pci->attr->pcidev;
    const std::optional<int> cuda = cuda_number_below(pci);
    const bool is_display = attributes.class_id >> 8 == display_class;
    if (!cuda && (attributes.vendor_id != nvidia || !is_display)) continue;
    Device& gpu = gpus.emplace_back();
    gpu.kind = DeviceKind::gpu;
    gpu.pci = address(attributes);
    gpu.number = cuda.value_or(-1);
    gpu.numa = list_of(hwloc_get_non_io_ancestor_obj(topology, pci)->nodeset);
    gpu.bridges = bridges_above(pci);
    nvlink.add_to(gpu);
  }
  std::ranges::sort(gpus, {}, &Device::pci);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i].number < 0) gpus[i].number = static_cast<int>(i);
    gpus[i].name = fmt::format("cuda{}", gpus[i].number);
  }
  return gpus;
}

std::vector<Device> slot_devices(const Topology& topology, const CoreShare& cores,
                                 std::span<const std::optional<Device>> gpus, int slots) {
  std::vector<Device> devices = core_devices(topology, cores, slots);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i]) devices[i] = *gpus[i];
  }
  return devices;
}

std::vector<unsigned> near_cores(const Topology& topology, const std::string& pus,
                                 std::span<const Device> gpus) {
  const PuSet mine(pus);
  const std::vector<hwloc_obj_t> cores = cores_with(topology.get(), mine);
  if (cores.size() < gpus.size()) return {};
  const auto distance = [&](hwloc_obj_t core, const Device& gpu) {
    const auto bridges = host_bridges_of(topology.get(), core->cpuset);
    if (!gpu.bridges.empty() && std::ranges::find(bridges, gpu.bridges.front()) != bridges.end()) return 0;
    return hwloc_bitmap_intersects(core->nodeset, PuSet(gpu.numa).get()) != 0 ? 1 : 2;
  };
  constexpr unsigned none = std::numeric_limits<unsigned>::max();
  std::vector<unsigned> chosen(gpus.size(), none);
  std::vector<bool> taken(cores.size(), false);
  // The nearest pairs first, so that a core near one GPU does not go to a GPU that is far from it.
  for (int max = 0; max <= 2; ++max) {
    for (std::size_t g = 0; g < gpus.size(); ++g) {
      for (std::size_t c = 0; c < cores.size() && chosen[g] == none; ++c) {
        if (taken[c] || distance(cores[c], gpus[g]) > max) continue;
        chosen[g] = first_pu(topology.get(), cores[c], mine);
        taken[c] = true;
      }
    }
  }
  return chosen;
}

CoreShare near_gpus(const Topology& topology, CoreShare share, std::span<const std::optional<Device>> gpus) {
  std::vector<std::size_t> on_gpus;
  for (std::size_t slot = 0; slot < gpus.size(); ++slot) {
    if (gpus[slot]) on_gpus.push_back(slot);
  }
  if (on_gpus.empty() || share.worker_pus.empty()) return share;
  std::vector<Device> nearest;
  for (std::size_t slot = 0; slot < gpus.size(); ++slot) {
    const auto away = [slot](std::size_t other) { return std::max(slot, other) - std::min(slot, other); };
    nearest.push_back(*gpus[*std::ranges::min_element(on_gpus, {}, away)]);
  }
  share.worker_pus = near_cores(topology, share.binding, nearest);
  return share;
}

}  // namespace starpipe::runtime
