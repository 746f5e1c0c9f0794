// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/rank_mapping.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/hardware/cuda_devices.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

nlohmann::json to_json(const Device& device) {
  const auto& [kind, host, rank, name, number, numa, cache, pci, bridges, nvlink] = device;
  return {kind == DeviceKind::gpu, host, rank, name, number, numa, cache, pci, bridges, nvlink};
}

Device device_of(const nlohmann::json& words) {
  return {words[0].get<bool>() ? DeviceKind::gpu : DeviceKind::core,
          words[1],
          words[2],
          words[3],
          words[4],
          words[5],
          words[6],
          words[7],
          words[8],
          words[9].get<std::map<std::string, double>>()};
}

/// Collective. Of all ranks, by rank; host and rank are set here.
std::vector<std::vector<Device>> gather_devices(const Mpi& mpi, std::vector<Device> devices) {
  const std::string host = find_hardware().host;
  nlohmann::json mine = nlohmann::json::array();
  for (Device& device : devices) {
    device.host = host;
    device.rank = mpi.rank();
    mine.push_back(to_json(device));
  }
  std::vector<std::vector<Device>> by_rank;
  for (const std::string& words : mpi.gather(mine.dump())) {
    std::vector<Device>& of_rank = by_rank.emplace_back();
    for (const auto& device : nlohmann::json::parse(words)) of_rank.push_back(device_of(device));
  }
  return by_rank;
}

}  // namespace

GpuShare share_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  GpuShare share;
  if (!config.uses_gpus()) return share;
  const auto on_gpus = [&](int rank) {
    int count = 0;
    for (int i = 0; i < map.count(rank); ++i) count += config.on_gpu(map.worker(map.first(rank) + i)) ? 1 : 0;
    return count;
  };
  const int mine = on_gpus(mpi.rank());
  const auto visible = gather_devices(mpi, visible_gpus());
  const std::string host = find_hardware().host;
  std::vector<GpuTenant> here;
  std::size_t self = 0;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    const std::vector<Device>& gpus = visible[static_cast<std::size_t>(rank)];
    if (rank == mpi.rank()) self = here.size();
    if (rank == mpi.rank() || (!gpus.empty() && gpus.front().host == host))
      here.push_back({gpus, on_gpus(rank)});
  }
  const std::vector<Device> devices = share_gpus(here)[self];
  for (const Device& device : devices) {
    if (share.gpus.empty() || share.gpus.back() != device.number) share.gpus.push_back(device.number);
  }
  std::string problem;
  const auto carries = [&](int gpu) { return std::ranges::count(devices, gpu, &Device::number); };
  if (share.gpus.empty() && mine > 0) {
    problem = fmt::format("runtime.device: cuda: rank {} finds no CUDA device", mpi.rank());
  } else if (!std::ranges::all_of(share.gpus,
                                  [&](int gpu) { return carries(gpu) == carries(share.gpus[0]); })) {
    problem = fmt::format("schedule.workers: rank {} carries {} workers, which do not divide by its {} GPUs",
                          mpi.rank(), mine, share.gpus.size());
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) throw InputError(problem);
  if (mine == 0) return share;
  share.workers_each = mine / static_cast<int>(share.gpus.size());
  share.devices.resize(static_cast<std::size_t>(map.count(mpi.rank())));
  std::size_t next = 0;
  for (std::size_t i = 0; i < share.devices.size(); ++i) {
    if (config.on_gpu(map.worker(map.first(mpi.rank()) + static_cast<int>(i))))
      share.devices[i] = devices[next++];
  }
  return share;
}

std::vector<Device> devices_of(const Topology& topology, const CoreShare& cores,
                               std::span<const std::optional<Device>> gpus, int places) {
  std::vector<Device> devices = topology.cores_of(cores, places);
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    if (gpus[i]) devices[i] = *gpus[i];
  }
  return devices;
}

WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Traffic> traffic) {
  std::vector<Device> all;
  for (const std::vector<Device>& of_rank : gather_devices(mpi, std::move(devices)))
    all.insert(all.end(), of_rank.begin(), of_rank.end());
  // One rank decides: hosts of another kind may round otherwise.
  std::string decision;
  if (mpi.rank() == 0) decision = nlohmann::json(map_workers(all, traffic)).dump();
  decision = mpi.gather(decision).front();
  return {mpi.ranks(), nlohmann::json::parse(decision).get<std::vector<int>>()};
}

}  // namespace starpipe::runtime
