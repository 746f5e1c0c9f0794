// SPDX-License-Identifier: Apache-2.0
#include "runtime/hardware/topology.hpp"

#include <algorithm>
#include <stdexcept>

#include "runtime/hardware/hwloc_objects.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/files.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

Topology::Topology(const std::string& description, const std::filesystem::path& file, bool with_devices) {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) throw std::runtime_error("hwloc does not start");
  topology_.reset(topology, hwloc_topology_destroy);
  if (!description.empty() && hwloc_topology_set_synthetic(topology, description.c_str()) != 0) {
    throw std::runtime_error("hwloc knows no such topology: " + description);
  }
  if (with_devices) hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (!file.empty() && hwloc_topology_set_xml(topology, file.c_str()) != 0) {
    throw InputError(file.string() + ": hwloc cannot read it, expected what `lstopo FILE.xml` writes");
  }
  if (hwloc_topology_load(topology) == 0) return;
  if (!file.empty())
    throw InputError(file.string() +
                     ": hwloc finds no topology in it, expected what `lstopo FILE.xml` writes");
  throw std::runtime_error("hwloc finds no topology");
}

Topology::Topology(const std::string& description) : Topology(description, {}, false) {}

Topology Topology::from_file(const std::filesystem::path& file) {
  read_file(file);  // for a file that cannot be read, its messages are better than hwloc's
  return {{}, file, true};
}

const Topology& Topology::host() {
  static const Topology topology{std::string()};
  return topology;
}

const Topology& Topology::host_with_devices() {
  static const Topology topology{{}, {}, true};
  return topology;
}

int Topology::cores(const std::string& pus) const {
  return static_cast<int>(cores_with(topology_.get(), PuSet(pus)).size());
}

std::string Topology::processor() const {
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology_.get(), HWLOC_OBJ_PACKAGE, 0);
  const char* const name = package == nullptr ? nullptr : hwloc_obj_get_info_by_name(package, "CPUModel");
  return name == nullptr ? "" : name;
}

std::string Topology::binding() const {
  const PuSet bound;
  if (hwloc_get_cpubind(topology_.get(), bound.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(bound.get(), hwloc_topology_get_allowed_cpuset(topology_.get()));
  }
  return bound.list();
}

void Topology::bind(const std::string& pus) const {
  // A failure is no reason to stop: threads are then bound less tightly.
  hwloc_set_cpubind(topology_.get(), PuSet(pus).get(), HWLOC_CPUBIND_PROCESS);
}

CoreShare Topology::share(std::span<const RankOnHost> ranks, std::size_t rank) const {
  const PuSet mine(ranks[rank].binding);
  const PuSet all(ranks[rank].binding);
  CoreShare share{.binding = ranks[rank].binding,
                  .cores = 1,
                  .ranks = 1,
                  .workers = ranks[rank].workers,
                  .worker_pus = {}};
  bool divisible = true;
  int before = 0;  // cores that the ranks before this one must have
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    const PuSet theirs(ranks[other].binding);
    if (other == rank || hwloc_bitmap_intersects(theirs.get(), mine.get()) == 0) continue;
    divisible = divisible && hwloc_bitmap_isequal(theirs.get(), mine.get()) != 0;
    hwloc_bitmap_or(all.get(), all.get(), theirs.get());
    ++share.ranks;
    share.workers += ranks[other].workers;
    if (other < rank) before += ranks[other].workers + 1;
  }
  const std::vector<hwloc_obj_t> cores = cores_with(topology_.get(), all);
  share.cores = std::max(1, static_cast<int>(cores.size()));
  if (!divisible || share.oversubscribed()) return share;

  const int workers = ranks[rank].workers;
  const auto boundary = [&](int needed) {
    return cores.size() * index(needed) / index(share.workers + share.ranks);
  };
  const PuSet own;
  for (std::size_t i = boundary(before); i < boundary(before + workers + 1); ++i) {
    const PuSet pus;
    hwloc_bitmap_and(pus.get(), cores[i]->cpuset, mine.get());
    hwloc_bitmap_or(own.get(), own.get(), pus.get());
    if (std::ssize(share.worker_pus) == workers) continue;
    const auto first = static_cast<unsigned>(hwloc_bitmap_first(pus.get()));
    share.worker_pus.push_back(hwloc_get_pu_obj_by_os_index(topology_.get(), first)->logical_index);
  }
  share.binding = own.list();
  return share;
}

}  // namespace starpipe::runtime
