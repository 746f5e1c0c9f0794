// SPDX-License-Identifier: Apache-2.0
// One training step as tasks over data: the engine inserts these tasks into StarPU, and the meter counts
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

enum class DataKind : std::uint8_t {
  weights,  // in the precision that passes read; one for each holder; lasts over the steps
  master,   // the parameters in fp32, only when `weights` are in bf16; one for each holder, like `weights`
  optimizer_state,  // as `weights`
  weight_gradient,  // accumulator, one for each worker that runs W or BW and each holder; lasts over the
                    // steps
  input,            // of a source, one for each worker that reads it; the host fills it before the step
  target,           // of the sink; the host fills it before the step
  loss,             // the host reads it after the step
  verdict,          // whether the step's update is skipped: not 0 when a value was not finite; one for each
                    // worker, and only in graphs that can skip updates
  activation,       // this kind and the next ones are written once a step and dropped after their last reader
  stash,
  gradient,
  gradient_stash,
};

/// Whether StarPU allocates the memory at the first write and frees it after the last reader. Otherwise the
/// host provides the memory, and may read it between steps.
constexpr bool is_temporary(DataKind kind) { return kind >= DataKind::activation; }

/// Its name in messages, such as "weight gradient".
std::string_view to_string(DataKind kind);

/// A piece of data of the step. Only one worker writes it: its writer.
struct Datum {
  DataKind kind;
  int stage;         // an activation is the output of this stage, a gradient is that output's gradient
  int microbatch;    // -1 for data that last over the steps
  int worker;        // the logical worker that writes it
  std::size_t size;  // words of 4 bytes
};

enum class Access : std::uint8_t {
  read,
  write,
  update,      // read and write
  accumulate,  // add to it, in any order that the policy chooses, until a `close` task
  precede,     // no access to its memory; the next task that updates the datum waits for this task
};

enum class TaskKind : std::uint8_t {
  zero,  // clears an accumulator
  F,
  B,
  W,
  BW,
  close,     // takes an accumulator for itself, after all tasks that accumulate
  add,       // a step of a reduction: adds another worker's sum to the worker's own
  copy,      // takes over the finished sum, on a further holder
  judge,     // writes a worker's verdict, after all passes of the worker
  merge,     // joins another worker's verdict into the worker's own
  optimize,  // updates the weights of a holder, unless there is a verdict that skips the update
};

std::string_view to_string(TaskKind kind);
/// F, B, W or BW.
constexpr bool is_pass(TaskKind kind) { return kind >= TaskKind::F && kind <= TaskKind::BW; }

struct DataAccess {
  std::size_t datum;
  Access access;
};

/// A task of the step. `data`: for add, copy and merge first the source, then the target; for an update that
/// may be skipped, first the verdict. Kernels of passes find their data by kind; data of one kind are in the
/// order of the stage's predecessors or successors.
struct Task {
  TaskKind kind;
  int stage;
  int worker;  // the logical worker that runs it
  std::optional<plan::JobId> job;
  std::vector<DataAccess> data;
};

/// The task for people: F(2,0) for a job, else its kind and its stage.
std::string name_of(const Task& task, const plan::Schedule& schedule);

/// All data and tasks of a step of `schedule`. The tasks would run correctly one after the other in their
/// order, and the order keeps the order of each worker: StarPU derives implicit dependencies from it.
/// Accumulators are zeroed first. Jobs follow in topological order. Then accumulators are closed, gradients
/// are reduced and the holders' optimizers run.
///
/// In a graph that can skip updates each worker that runs passes judges after them whether all values are
/// finite. The workers' verdicts are joined over a tree, and the holders' optimizers read the result.
///
/// With recomputation B, or BW, reads the inputs of F, computes F again and writes the stash.
class TaskGraph {
 public:
  /// The schedule's and network's stage graphs must be equal; throws std::logic_error otherwise.
  /// `can_skip`: whether the optimizers wait for a verdict.
  TaskGraph(const plan::Schedule& schedule, const model::Network& network,
            const model::OptimizerConfig& optimizer, bool can_skip = false);

  [[nodiscard]] const std::vector<Datum>& data() const { return data_; }
  [[nodiscard]] const std::vector<Task>& tasks() const { return tasks_; }
  /// The index in tasks() of one of its elements.
  [[nodiscard]] std::size_t number_of(const Task& task) const {
    return static_cast<std::size_t>(&task - tasks_.data());
  }

 private:
  class Builder;
  std::vector<Datum> data_;
  std::vector<Task> tasks_;
};

}  // namespace starpipe::runtime
