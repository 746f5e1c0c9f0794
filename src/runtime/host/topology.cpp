// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/topology.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "base/files.hpp"
#include "runtime/host/hwloc_objects.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// The cores of one rank, as indices [first, last) into the cores that the ranks divide.
struct CoreRange {
  std::size_t first = 0;
  std::size_t last = 0;
};

// Divides `cores` cores among ranks with these numbers of workers, each at least 1; see Topology::share.
std::vector<CoreRange> divide_cores(std::size_t cores, std::span<const int> workers) {
  const std::size_t ranks = workers.size();
  const std::size_t total = index(std::accumulate(workers.begin(), workers.end(), 0));
  std::vector<CoreRange> ranges;
  if (ranks > cores) {
    std::size_t before = 0;  // workers of lower ranks
    for (const int of_rank : workers) {
      const std::size_t first = cores * before / total;
      before += index(of_rank);
      ranges.push_back({first, std::max(first + 1, cores * before / total)});
    }
    return ranges;
  }
  // For each rank: 1 if its MPI thread gets a core, else 0.
  const std::size_t mpi_threads = cores >= total + ranks ? 1 : 0;
  std::vector<std::size_t> counts(ranks, 1);
  const auto fewer_threads_a_core = [&](std::size_t a, std::size_t b) {
    return (index(workers[a]) + mpi_threads) * counts[b] < (index(workers[b]) + mpi_threads) * counts[a];
  };
  std::vector<std::size_t> all(ranks);
  std::iota(all.begin(), all.end(), 0U);
  for (std::size_t i = ranks; i < cores; ++i) ++counts[*std::ranges::max_element(all, fewer_threads_a_core)];
  std::size_t first = 0;
  for (const std::size_t count : counts) {
    ranges.push_back({first, first + count});
    first += count;
  }
  return ranges;
}

}  // namespace

std::vector<std::size_t> neighbours(std::span<const RankOnHost> ranks, std::size_t rank) {
  const PuSet mine(ranks[rank].binding);
  std::vector<std::size_t> found;
  for (std::size_t other = 0; other < ranks.size(); ++other) {
    const PuSet theirs(ranks[other].binding);
    if (other == rank || hwloc_bitmap_intersects(theirs.get(), mine.get()) != 0) found.push_back(other);
  }
  return found;
}

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

int Topology::pus() const { return hwloc_get_nbobjs_by_type(topology_.get(), HWLOC_OBJ_PU); }

unsigned Topology::system_number(unsigned pu) const {
  return hwloc_get_obj_by_type(topology_.get(), HWLOC_OBJ_PU, pu)->os_index;
}

std::string Topology::processor() const {
  const hwloc_obj_t package = hwloc_get_obj_by_type(topology_.get(), HWLOC_OBJ_PACKAGE, 0);
  const char* const name = package == nullptr ? nullptr : hwloc_obj_get_info_by_name(package, "CPUModel");
  return name == nullptr ? "" : name;
}

std::string Topology::allowed() const {
  return PuSet(hwloc_topology_get_allowed_cpuset(topology_.get())).list();
}

std::string Topology::binding() const {
  const PuSet bound;
  const int failed = hwloc_get_cpubind(topology_.get(), bound.get(), HWLOC_CPUBIND_PROCESS);
  return failed == 0 ? bound.list() : allowed();
}

void Topology::bind(const std::string& pus) const {
  // A failure does not stop the run: threads are then bound less tightly.
  hwloc_set_cpubind(topology_.get(), PuSet(pus).get(), HWLOC_CPUBIND_PROCESS);
}

void Topology::bind_thread(const std::string& pus) const {
  hwloc_set_cpubind(topology_.get(), PuSet(pus).get(), HWLOC_CPUBIND_THREAD);
}

std::string Topology::free_pus(const CoreShare& share) const {
  if (share.worker_pus.empty()) return {};
  const PuSet free(share.binding);
  for (const unsigned pu : share.worker_pus) {
    const PuSet worker(std::to_string(system_number(pu)));
    for (const hwloc_obj_t core : cores_with(topology_.get(), worker))
      hwloc_bitmap_andnot(free.get(), free.get(), core->cpuset);
  }
  return free.list();
}

CoreShare Topology::share(std::span<const RankOnHost> ranks, std::size_t rank) const {
  const PuSet mine(ranks[rank].binding);
  const PuSet all(ranks[rank].binding);
  CoreShare share;
  share.binding = ranks[rank].binding;
  share.ranks = 0;
  share.workers = 0;
  bool divisible = true;
  std::vector<int> workers;  // of each neighbour
  std::size_t own = 0;       // this rank among its neighbours
  for (const std::size_t other : neighbours(ranks, rank)) {
    const PuSet theirs(ranks[other].binding);
    divisible = divisible && hwloc_bitmap_isequal(theirs.get(), mine.get()) != 0;
    hwloc_bitmap_or(all.get(), all.get(), theirs.get());
    if (other == rank) own = workers.size();
    workers.push_back(ranks[other].workers);
    ++share.ranks;
    share.workers += ranks[other].workers;
  }
  const std::vector<hwloc_obj_t> cores = cores_with(topology_.get(), all);
  share.cores = std::max(1, static_cast<int>(cores.size()));
  if (!divisible || cores.empty()) return share;

  const auto [first, last] = divide_cores(cores.size(), workers)[own];
  share.exclusive = workers.size() <= cores.size();
  const bool one_each = share.exclusive && last - first >= index(ranks[rank].workers);
  const PuSet pus_of_share;
  for (std::size_t i = first; i < last; ++i) {
    const PuSet pus;
    hwloc_bitmap_and(pus.get(), cores[i]->cpuset, mine.get());
    hwloc_bitmap_or(pus_of_share.get(), pus_of_share.get(), pus.get());
    if (one_each && std::ssize(share.worker_pus) < ranks[rank].workers)
      share.worker_pus.push_back(first_pu(topology_.get(), cores[i], mine));
  }
  share.binding = pus_of_share.list();
  return share;
}

}  // namespace starpipe::runtime
