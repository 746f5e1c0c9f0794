// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/gpu_share.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "runtime/host/cuda_devices.hpp"
#include "runtime/host/gpu_division.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/rank_devices.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

int workers_on_gpus(const WorkerMap& map, const RuntimeConfig& config, int rank) {
  return static_cast<int>(
      std::ranges::count_if(map.workers_of(rank), [&](int worker) { return config.on_gpu(worker); }));
}

// Collective. The GPU of each worker of this rank that runs on one.
std::vector<Device> own_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  const std::vector<std::vector<Device>> visible = gather_devices(mpi, visible_gpus());
  const std::string host = find_hardware().host;
  std::vector<RankWithGpus> here;
  std::size_t self = 0;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    const std::vector<Device>& gpus = visible[index(rank)];
    if (rank == mpi.rank()) self = here.size();
    if (rank == mpi.rank() || (!gpus.empty() && gpus.front().host == host))
      here.push_back({gpus, workers_on_gpus(map, config, rank)});
  }
  return divide_gpus(here)[self];
}

}  // namespace

GpuShare share_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  GpuShare share;
  if (!config.uses_gpus()) return share;
  const int mine = workers_on_gpus(map, config, mpi.rank());
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

}  // namespace starpipe::runtime
