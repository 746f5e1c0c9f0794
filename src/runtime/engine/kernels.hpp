// SPDX-License-Identifier: Apache-2.0
// The computations of each task, on any backend.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/engine/task_graph.hpp"
#include "starpipe/model/backend.hpp"
#include "starpipe/model/memory_view.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"

namespace starpipe::runtime {

/// Facts that all tasks of a step share.
struct KernelContext {
  const TaskGraph* graph = nullptr;
  const model::Network* network = nullptr;
  const model::OptimizerConfig* optimizer = nullptr;
  float loss_scale = 1;      ///< 1 / whole micro-batches: the objective is the mean over the step
  int updates = 0;           ///< that the optimizer has done before
  double learning_rate = 0;  ///< of the step
};

/// Returns the number of words of working memory that the passes of a stage need on the device, on any of its
/// slices. `rules`: of the graph, which may have evaluations.
std::size_t scratch_size(const plan::Schedule& schedule, const model::Network& network, int stage,
                         bool on_gpu, const StepRules& rules = {});
/// Returns the number of words of working memory that a GPU needs for any `norm` of the graph.
std::size_t norm_scratch_size(const TaskGraph& graph);

/// Runs `task`, or enqueues it on the backend's stream. `data`: the memory of `task.data`, in the same order;
/// verdicts are in the host's memory, and their tasks have ended. `scratch`: scratch_size() words for a pass,
/// norm_scratch_size() words for a norm on a GPU. `found`: a pass sets it to 1 if it finds infinity or NaN,
/// and `judge` reads there what all passes of its worker have found; nullptr: the run does not look for such
/// values. Thread-safe for tasks that write different data.
void run_kernel(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                model::Memory scratch, float* found = nullptr,
                const model::Backend& backend = model::cpu_backend()) noexcept;

/// Enqueues a task's kernels on the stream of the CUDA worker that calls: see run_kernel. `found`: in
/// memory that the GPU can write to, or nullptr. In builds without CUDA it is never called.
void run_kernel_on_stream(const KernelContext& context, const Task& task, std::span<const model::Memory> data,
                          model::Memory scratch, float* found) noexcept;

/// A worker's verdict on a step, in the host's memory: the sum of squares of each parameter's gradient, in
/// the model's order, and a flag that a pass found infinity or NaN. 0 stands for an unknown entry; a sum that
/// is 0 may count as unknown. Each entry has one author, so merging copies values and does not add: the bits
/// of a complete verdict do not depend on the order of merges. Does not own the memory.
class Verdict {
 public:
  /// Words of 4 bytes of a verdict on so many parameters.
  static constexpr std::size_t words(std::size_t parameters) { return 2 * (parameters + 1); }
  /// `memory`: of words() words, aligned to 8 bytes.
  explicit Verdict(model::Memory memory) : entries_(memory.as<double>(), memory.size() / 2) {}

  /// Forgets the last step. `found`: a pass of the worker found infinity or NaN.
  void begin(bool found) const noexcept;
  /// Takes over the entries that `other` knows.
  void merge(const Verdict& other) const noexcept;

  [[nodiscard]] std::span<double> sums() const noexcept { return entries_.first(entries_.size() - 1); }
  /// Returns the norm of the gradient, if all sums are known.
  [[nodiscard]] double norm() const noexcept;
  /// True if the step's update is to be skipped: a pass found infinity or NaN, or the gradient has such a
  /// value. A gradient may overflow though all results of passes are finite.
  [[nodiscard]] bool skips() const noexcept;

 private:
  std::span<double> entries_;  // the sums, then `found`
};

}  // namespace starpipe::runtime
