// SPDX-License-Identifier: Apache-2.0
#include "hardware.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include <hwloc.h>
#include <unistd.h>

namespace starpipe::runtime {

Hardware find_hardware() {
  Hardware hardware;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) hardware.machine = name.data();

  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return hardware;
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> topology(raw,
                                                                                    hwloc_topology_destroy);
  if (hwloc_topology_load(topology.get()) != 0) return hardware;

  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> bound(hwloc_bitmap_alloc(),
                                                                            hwloc_bitmap_free);
  if (hwloc_get_cpubind(topology.get(), bound.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(bound.get(), hwloc_topology_get_allowed_cpuset(topology.get()));
  }
  const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology.get(), bound.get(), HWLOC_OBJ_CORE);
  // Bound to one of a core's hardware threads, hwloc counts no core inside.
  hardware.cores = std::max(1, cores > 0 ? cores : hwloc_bitmap_weight(bound.get()));
  char* list = nullptr;
  if (hwloc_bitmap_list_asprintf(&list, bound.get()) >= 0) {
    hardware.binding = list;
    std::free(list);
  }
  if (const hwloc_obj_t package = hwloc_get_obj_by_type(topology.get(), HWLOC_OBJ_PACKAGE, 0)) {
    if (const char* model = hwloc_obj_get_info_by_name(package, "CPUModel")) hardware.cpu = model;
  }
  return hardware;
}

}  // namespace starpipe::runtime
