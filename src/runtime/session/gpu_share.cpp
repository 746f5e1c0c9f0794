// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/gpu_share.hpp"

#include <set>

namespace starpipe::runtime {

std::vector<unsigned> cores_in_order(std::span<const unsigned> pus, const GpuShare& gpus) {
  std::vector<unsigned> drivers;
  std::vector<unsigned> computing;
  std::vector<unsigned> rest;
  std::set<int> seen;
  for (std::size_t place = 0; place < pus.size(); ++place) {
    const bool on_gpu = gpus.has(static_cast<int>(place));
    const bool drives = on_gpu && seen.insert(gpus.devices[place]->number).second;
    (drives ? drivers : on_gpu ? rest : computing).push_back(pus[place]);
  }
  drivers.insert(drivers.end(), computing.begin(), computing.end());
  drivers.insert(drivers.end(), rest.begin(), rest.end());
  return drivers;
}

}  // namespace starpipe::runtime
