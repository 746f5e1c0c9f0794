// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/rank_location.hpp"

#include <nlohmann/json.hpp>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

std::vector<RankPlace> gather_places(const Mpi& mpi, const WorkerMap& map, const CoreShare& share,
                                     std::span<const Device> devices) {
  std::vector<std::string> names;
  for (const Device& device : devices) names.push_back(device.name);
  const auto everybody =
      mpi.gather(nlohmann::json{find_hardware().machine, share.binding, Topology::host().cores(share.binding),
                                !share.worker_pus.empty(), names}
                     .dump());
  std::vector<RankPlace> places;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    const auto words = nlohmann::json::parse(everybody[static_cast<std::size_t>(rank)]);
    places.push_back({words[0], words[1], words[2], map.count(rank), words[3], {}, words[4]});
    for (int i = 0; i < map.count(rank); ++i)
      places.back().logical_workers.push_back(map.worker(map.first(rank) + i));
  }
  return places;
}

}  // namespace starpipe::runtime
