// SPDX-License-Identifier: Apache-2.0
#include "runtime/simulation/simulated_session.hpp"

#include <string>
#include <utility>

#include "runtime/host/core_share.hpp"
#include "runtime/host/gpu_share.hpp"

namespace starpipe::runtime {
namespace {

// A GPU for each worker of the rank.
GpuShare simulated_gpus(int workers, int rank) {
  GpuShare share;
  for (int gpu = 0; gpu < workers; ++gpu) {
    share.gpus.push_back(gpu);
    Device device;
    device.kind = DeviceKind::gpu;
    device.rank = rank;
    device.name = "cuda" + std::to_string(gpu);
    device.number = gpu;
    share.devices.emplace_back(std::move(device));
  }
  return share;
}

}  // namespace

std::unique_ptr<Session> simulated_session(const Mpi& mpi, const WorkerMap& map, PolicyChoice policy) {
  const int workers = map.count(mpi.rank());
  const CoreShare cores{
      .binding = {}, .cores = workers, .workers = workers, .exclusive = true, .worker_pus = {}};
  return std::make_unique<Session>(mpi, map, cores, std::move(policy), simulated_gpus(workers, mpi.rank()));
}

}  // namespace starpipe::runtime
