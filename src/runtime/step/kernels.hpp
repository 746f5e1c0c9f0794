// SPDX-License-Identifier: Apache-2.0
// The computations of each task, on any backend.
#pragma once

#include <span>

#include "runtime/step/task_graph.hpp"
#include "starpipe/model/backend.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime {

/// Facts that all tasks of a step share.
struct KernelContext {
  const TaskGraph* graph = nullptr;
  const model::Network* network = nullptr;
  const model::OptimizerConfig* optimizer = nullptr;
  float loss_scale = 1;  ///< 1 / micro-batches: the objective is the mean over the step
  int updates = 0;       ///< that the optimizer has done before
};

/// Flags of one pass: 1 where it found infinity or NaN, else 0. In memory that a GPU can write to.
struct NonFinite {
  float results = 0;  ///< in the data that it has written: activations, loss, gradients
  float sum = 0;      ///< in the accumulator of weight gradients, to which it has added
};

/// Words of working memory that the tasks of `stage` need on the device.
std::size_t scratch_size(const plan::Schedule& schedule, const model::Stage& stage, bool on_gpu);

/// Runs `task`, or enqueues it on the backend's stream. `data`: the memory of `task.data`, in the same order;
/// `scratch`: scratch_size() words. `found`: where a pass notes values that are not finite; nullptr: the pass
/// does not look. Do not call it for `judge` and `merge`: TaskRunner runs them. Thread-safe for tasks that
/// write different data.
void run_kernel(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                model::Memory scratch, NonFinite* found = nullptr,
                const model::Backend& backend = model::cpu_backend()) noexcept;

}  // namespace starpipe::runtime
