// SPDX-License-Identifier: Apache-2.0
#include "gpus.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "devices.hpp"
#include "starpipe/plan/error.hpp"

namespace starpipe::runtime {

void check_device(const Config& config) {
  const RuntimeConfig& runtime = config.runtime;
  if (runtime.device != "cuda") return;
  if (!built_with_cuda()) {
    throw InputError("runtime.device: cuda: this starpipe was built without CUDA (STARPIPE_WITH_CUDA)");
  }
  if (runtime.emulate) throw InputError("runtime.device: cuda: runtime.emulate needs device cpu");
  if (config.schedule.partition && config.schedule.profile_file.empty()) {
    throw InputError(
        "runtime.device: cuda: schedule.partition would measure the layers on the CPU; give "
        "schedule.profile");
  }
  if (cuda_devices().empty()) throw InputError("runtime.device: cuda: no CUDA device found");
}

void check_kernels(const Config& config, const model::Network& network) {
  if (config.runtime.device != "cuda") return;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    const model::Stage& stage = network.stages[s];
    const bool all = std::ranges::all_of(stage.ops(), [](const model::StageOp& op) {
      return op.layer == nullptr || op.layer->cuda() != nullptr;
    });
    if (all && (stage.loss() == nullptr || stage.loss()->cuda() != nullptr)) continue;
    throw InputError(
        fmt::format("runtime.device: cuda: a layer of stage {} has no CUDA kernels for its shape (attention "
                    "has them for heads "
                    "of at most 128 columns)",
                    s));
  }
}

std::vector<int> gpus_of_rank(int gpus, int ranks, int rank, int workers) {
  const auto share = [&](int r) { return static_cast<int>(std::int64_t{gpus} * r / ranks); };
  const int first = share(rank);
  const int last = std::max(share(rank + 1), first + 1);
  std::vector<int> mine;
  for (int gpu = first; gpu < std::min(last, first + workers); ++gpu) mine.push_back(gpu);
  return mine;
}

GpuShare share_gpus(const Mpi& mpi, const WorkerMap& map, const RuntimeConfig& config) {
  GpuShare share;
  if (config.device != "cuda") return share;
  const std::vector<std::string> visible = cuda_device_ids();
  const auto everybody = mpi.gather(nlohmann::json{find_hardware().host, visible}.dump());
  int ranks = 0;
  int self = 0;
  for (int rank = 0; rank < mpi.ranks(); ++rank) {
    if (rank == mpi.rank()) self = ranks;
    ranks +=
        everybody[static_cast<std::size_t>(rank)] == everybody[static_cast<std::size_t>(mpi.rank())] ? 1 : 0;
  }
  const int workers = map.count(mpi.rank());
  share.gpus = gpus_of_rank(static_cast<int>(visible.size()), ranks, self, workers);
  const int count = static_cast<int>(share.gpus.size());
  std::string problem;
  if (workers % count != 0) {
    problem = fmt::format("schedule.workers: rank {} carries {} workers, which do not divide by its {} GPUs",
                          mpi.rank(), workers, count);
  }
  problem = mpi.first_problem(problem);
  if (!problem.empty()) throw InputError(problem);
  share.workers_each = workers / count;
  return share;
}

}  // namespace starpipe::runtime
