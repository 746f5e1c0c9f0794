// SPDX-License-Identifier: Apache-2.0
// Parts of hwloc's C interface that the readers of a topology share.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <hwloc.h>

namespace starpipe::runtime {

/// hwloc's bitmap as a value.
class PuSet {
 public:
  PuSet() : bits_(hwloc_bitmap_alloc(), hwloc_bitmap_free) {}
  explicit PuSet(const std::string& list) : PuSet() { hwloc_bitmap_list_sscanf(get(), list.c_str()); }

  explicit PuSet(hwloc_const_bitmap_t bits) : PuSet() { hwloc_bitmap_copy(get(), bits); }

  [[nodiscard]] hwloc_bitmap_t get() const { return bits_.get(); }
  [[nodiscard]] std::string list() const {
    char* text = nullptr;
    if (hwloc_bitmap_list_asprintf(&text, get()) < 0) throw std::bad_alloc();
    const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
    return text;
  }

 private:
  std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> bits_;
};

/// Returns the cores that have a PU in the set.
inline std::vector<hwloc_obj_t> cores_with(hwloc_topology_t topology, const PuSet& pus) {
  // Some virtual machines have no cores, only PUs.
  const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<hwloc_obj_t> cores;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_by_type(topology, type, core)) != nullptr) {
    if (hwloc_bitmap_intersects(core->cpuset, pus.get()) != 0) cores.push_back(core);
  }
  return cores;
}

/// Returns the first PU of the core that is in the set, in hwloc's logical numbering.
inline unsigned first_pu(hwloc_topology_t topology, hwloc_obj_t core, const PuSet& pus) {
  const PuSet here;
  hwloc_bitmap_and(here.get(), core->cpuset, pus.get());
  const auto first = static_cast<unsigned>(hwloc_bitmap_first(here.get()));
  return hwloc_get_pu_obj_by_os_index(topology, first)->logical_index;
}

}  // namespace starpipe::runtime
