// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/finite_check.hpp"

#include <algorithm>
#include <stdexcept>

#ifdef STARPIPE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

namespace {

// Returns flags in the host's memory. `on_gpus`: the GPUs of this process write to the same memory by the
// same addresses. Throws std::runtime_error if CUDA has no memory for that.
std::shared_ptr<float[]> shared_flags(std::size_t count, [[maybe_unused]] bool on_gpus) {
#ifdef STARPIPE_WITH_CUDA
  if (on_gpus) {
    // With one address space for host and GPUs, a GPU writes to this memory by the host's address.
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, std::max<std::size_t>(1, count) * sizeof(float),
                      cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess)
      throw std::runtime_error("CUDA gives no memory that host and GPU share");
    return {static_cast<float*>(memory), [](float* used) { cudaFreeHost(used); }};
  }
#endif
  return std::make_shared<float[]>(count);
}

}  // namespace

FiniteCheck::FiniteCheck(const TaskGraph& graph, int workers, bool on_gpus, bool is_used)
    : graph_(graph),
      is_used_(is_used),
      flags_(shared_flags(is_used ? graph.tasks().size() : 0, on_gpus)),
      first_task_(index(workers)) {
  begin_step();
}

void FiniteCheck::begin_step() {
  if (is_used_) std::fill_n(flags_.get(), graph_.tasks().size(), 0.0F);
  for (auto& task : first_task_) task = none;
}

float* FiniteCheck::flag(const Task& task) const {
  if (!is_used_ || (!is_pass(task.kind) && task.kind != TaskKind::judge)) return nullptr;
  float& own = flags_[static_cast<std::ptrdiff_t>(graph_.number_of(task))];
  if (task.kind == TaskKind::judge) own = first_task_[index(task.worker)] != none ? 1.0F : 0.0F;
  return &own;
}

void FiniteCheck::end(const Task& task) {
  if (!is_pass(task.kind)) return;
  const float* const found = flag(task);
  if (found == nullptr || *found == 0) return;
  auto& smallest = first_task_[index(task.worker)];
  const std::size_t number = graph_.number_of(task);
  std::size_t known = smallest;
  while (number < known && !smallest.compare_exchange_weak(known, number)) {
  }
}

std::optional<plan::JobId> FiniteCheck::first(const Mpi& mpi) const {
  if (!is_used_) return std::nullopt;
  std::size_t mine = none;
  for (const auto& of_worker : first_task_) mine = std::min(mine, of_worker.load());
  const std::size_t smallest = mpi.combine(mine, Combine::min);
  if (smallest == none) return std::nullopt;
  return graph_.tasks()[smallest].job;
}

}  // namespace starpipe::runtime
