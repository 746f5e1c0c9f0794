// SPDX-License-Identifier: Apache-2.0
#include "gpus.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "devices.hpp"
#include "starpipe/plan/error.hpp"

namespace starpipe::runtime {

void check_device(const Config& config) {
  const RuntimeConfig& runtime = config.runtime;
  if (!runtime.uses_gpus()) return;
  if (!built_with_cuda()) {
    throw InputError("runtime.device: cuda: this starpipe was built without CUDA (STARPIPE_WITH_CUDA)");
  }
  if (runtime.emulate) throw InputError("runtime.device: cuda: runtime.emulate needs device cpu");
  if (cuda_devices().empty()) throw InputError("runtime.device: cuda: no CUDA device found");
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
