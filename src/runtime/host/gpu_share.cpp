// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/gpu_share.hpp"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "runtime/host/agreement.hpp"
#include "runtime/host/core_share.hpp"
#include "runtime/host/cuda_devices.hpp"
#include "runtime/host/hardware.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Collective. Returns the GPU of each worker of this rank that runs on one.
std::vector<Device> own_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  const std::vector<std::vector<Device>> visible = gather_devices(mpi, visible_gpus());
  const std::string host = find_hardware().host;
  std::vector<RankWithGpus> here;
  std::size_t self = 0;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    const std::vector<Device>& gpus = visible[index(rank)];
    if (rank == mpi.rank()) self = here.size();
    if (rank == mpi.rank() || (!gpus.empty() && gpus.front().host == host))
      here.push_back({gpus, map.count(rank) - workers_on_cores(map, config, rank)});
  }
  return divide_gpus(here)[self];
}

}  // namespace

GpuShare share_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  GpuShare share;
  if (!config.uses_gpus()) return share;
  const int mine = map.count(mpi.rank()) - workers_on_cores(map, config, mpi.rank());
  const std::vector<Device> devices = own_gpus(mpi, map, config);
  for (const Device& device : devices) {
    if (share.gpus.empty() || share.gpus.back() != device.number) share.gpus.push_back(device.number);
  }
  std::string problem;
  const auto carries = [&](int gpu) { return std::ranges::count(devices, gpu, &Device::number); };
  if (share.gpus.empty() && mine > 0) {
    problem = fmt::format("runtime.device: cuda: rank {} finds no CUDA device", mpi.rank());
  } else if (!std::ranges::all_of(share.gpus,
                                  [&](int gpu) { return carries(gpu) == carries(share.gpus[0]); })) {
    problem = fmt::format(
        "schedule.workers: the {} GPU workers of rank {} cannot be divided equally among its {} GPUs", mine,
        mpi.rank(), share.gpus.size());
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) throw InputError(problem);
  if (mine == 0) return share;
  share.workers_each = mine / static_cast<int>(share.gpus.size());
  auto next = devices.begin();
  for (const int worker : map.workers_of(mpi.rank()))
    share.devices.push_back(config.on_gpu(worker) ? std::optional(*next++) : std::nullopt);
  return share;
}

std::vector<unsigned> cores_in_order(std::span<const unsigned> pus, const GpuShare& gpus) {
  std::vector<unsigned> order;  // at first only the cores of the threads that drive GPUs
  std::vector<unsigned> computing;
  std::vector<unsigned> rest;  // cores of slots that are further streams of a GPU
  std::set<int> seen;
  for (int slot = 0; std::cmp_less(slot, pus.size()); ++slot) {
    const bool on_gpu = gpus.has(slot);
    const bool drives = on_gpu && seen.insert(gpus.devices[index(slot)]->number).second;
    (drives ? order : on_gpu ? rest : computing).push_back(pus[index(slot)]);
  }
  order.insert(order.end(), computing.begin(), computing.end());
  order.insert(order.end(), rest.begin(), rest.end());
  return order;
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Device, kind, host, rank, name, number, numa, cache, pci, bridges, nvlink)

std::vector<std::vector<Device>> gather_devices(const Mpi& mpi, std::vector<Device> devices) {
  const std::string host = find_hardware().host;
  for (Device& device : devices) {
    device.host = host;
    device.rank = mpi.rank();
  }
  return gather_all(mpi, devices);
}

namespace {

// For fewer workers than GPUs: the run of `count` neighbours that are nearest to each other, the first of
// equal ones.
std::vector<Device> nearest(const std::vector<Device>& gpus, std::size_t count) {
  if (gpus.size() <= count) return gpus;
  std::size_t best = 0;
  double min = std::numeric_limits<double>::infinity();
  for (std::size_t first = 0; first + count <= gpus.size(); ++first) {
    double far = 0;
    for (std::size_t a = first; a < first + count; ++a) {
      for (std::size_t b = a + 1; b < first + count; ++b) far += 1 / link_between(gpus[a], gpus[b]).bandwidth;
    }
    if (far >= min) continue;
    min = far;
    best = first;
  }
  const auto begin = gpus.begin() + static_cast<std::ptrdiff_t>(best);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

auto near_order(const Device& gpu) { return std::tie(gpu.numa, gpu.bridges, gpu.pci); }

}  // namespace

std::vector<std::vector<Device>> divide_gpus(std::span<const RankWithGpus> ranks) {
  std::vector<std::vector<Device>> by_rank(ranks.size());
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
      workers += index(ranks[rank].workers);
    }
    gpus = nearest(gpus, workers);
    std::size_t next = 0;
    for (const std::size_t rank : sharing) {
      done[rank] = true;
      // The rank's own numbers: CUDA numbers the GPUs that a process sees.
      for (int i = 0; i < ranks[rank].workers && !gpus.empty(); ++i, ++next) {
        const std::size_t at = next * gpus.size() / workers;
        by_rank[rank].push_back(*std::ranges::find(ranks[rank].visible, gpus[at].pci, &Device::pci));
      }
      std::ranges::stable_sort(by_rank[rank], {}, &Device::number);
    }
  }
  return by_rank;
}

}  // namespace starpipe::runtime
