// SPDX-License-Identifier: Apache-2.0
#include "rank_mapping.hpp"

#include <nlohmann/json.hpp>

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

}  // namespace

WorkerMap map_to_ranks(const Mpi& mpi, std::vector<Device> devices, std::span<const plan::Flow> flows) {
  const std::string host = find_hardware().host;
  nlohmann::json mine = nlohmann::json::array();
  for (Device& device : devices) {
    device.host = host;
    device.rank = mpi.rank();
    mine.push_back(to_json(device));
  }
  std::vector<Device> all;
  for (const std::string& words : mpi.gather(mine.dump())) {
    for (const auto& device : nlohmann::json::parse(words)) all.push_back(device_of(device));
  }
  // One rank decides: hosts of another kind may round otherwise.
  std::string decision;
  if (mpi.rank() == 0) decision = nlohmann::json(map_workers(all, flows)).dump();
  decision = mpi.gather(decision).front();
  return {mpi.ranks(), nlohmann::json::parse(decision).get<std::vector<int>>()};
}

}  // namespace starpipe::runtime
