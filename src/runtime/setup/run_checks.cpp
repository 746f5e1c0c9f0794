// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/run_checks.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <starpu.h>

#include "runtime/host/cuda_devices.hpp"
#include "base/environment.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::runtime {

namespace {

void check(bool needs_gpu) {
  if (!built_with_cuda()) {
    throw InputError("runtime.device: cuda: this starpipe was built without CUDA (STARPIPE_WITH_CUDA)");
  }
  if (needs_gpu && cuda_devices().empty()) throw InputError("runtime.device: cuda: no CUDA device found");
}

}  // namespace

void check_device(const Config& config) {
  if (config.runtime.uses_gpus()) check(true);
}

void check_rank_device(const Config& config) {
  if (!config.runtime.uses_gpus()) return;
  check(!config.runtime.is_mixed());
  if (cuda_devices().empty()) return;
  if (const std::string problem = starpu_problem(); !problem.empty()) throw InputError(problem);
}

std::string starpu_problem() {
#ifndef STARPU_NON_BLOCKING_DRIVERS
  return "runtime.device: cuda: StarPU was built with blocking drivers, which wait for the GPU after each "
         "task; run STARPIPE_GPUS=1 scripts/setup and build again, or bring a StarPU without them";
#else
  // StarPU would follow the variable instead of the session's choice of GPUs.
  if (environment("STARPU_WORKERS_CUDAID")) {
    return "STARPU_WORKERS_CUDAID: unset it; starpipe divides the GPUs that CUDA_VISIBLE_DEVICES shows";
  }
  return {};
#endif
}

void check_kernels(const Config& config, const model::Network& network) {
  if (!config.runtime.uses_gpus()) return;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    const model::Stage& stage = network.stages[s];
    const bool all = std::ranges::all_of(stage.ops(), [](const model::StageOp& op) {
      return op.layer == nullptr || op.layer->cuda() != nullptr;
    });
    if (all && (stage.loss() == nullptr || stage.loss()->cuda() != nullptr)) continue;
    throw InputError(
        fmt::format("runtime.device: cuda: a layer of stage {} has no CUDA kernels for its shape (attention "
                    "has them for heads of at most 128 columns)",
                    s));
  }
}

}  // namespace starpipe::runtime
