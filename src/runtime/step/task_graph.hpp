// SPDX-License-Identifier: Apache-2.0
// One training step as tasks over data, before StarPU sees it: what the engine inserts and the meter
// counts. Knows no StarPU and no MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

enum class DataKind : std::uint8_t {
  weights,          // as passes read them; one a holder; lives across steps
  master,           // the parameters as floats, where `weights` are not; one a holder; lives across steps
  optimizer_state,  // one a holder; lives across steps
  weight_gradient,  // accumulator, one a worker that runs W or BW, and one a holder; lives across steps
  input,            // of a source, one a worker that reads it; filled by the host before the step
  target,           // of the sink, likewise
  loss,             // read by the host after the step
  activation,       // the rest is written once a step and dropped after its last reader
  stash,
  gradient,
  gradient_stash,
};

/// Whether the host provides the memory (and may read it between steps), or StarPU allocates it when the
/// datum is first written and frees it after the last reader.
constexpr bool is_temporary(DataKind kind) { return kind >= DataKind::activation; }

/// A piece of data of the step. It has one writer: the worker that owns it.
struct Datum {
  DataKind kind;
  int stage;         // of an activation or gradient: the stage whose output it is, or the gradient of
  int microbatch;    // -1 for what lives across steps
  int worker;        // the logical worker that owns it
  std::size_t size;  // words of 4 bytes
};

enum class Access : std::uint8_t {
  read,
  write,
  update,      // read and write
  accumulate,  // add to it; order among accumulating tasks is the policy's. A `close` task ends them.
};

enum class TaskKind : std::uint8_t { zero, F, B, W, BW, close, add, copy, optimize };

std::string_view to_string(TaskKind kind);
/// F, B, W or BW.
constexpr bool is_pass(TaskKind kind) { return kind >= TaskKind::F && kind <= TaskKind::BW; }

struct DataAccess {
  std::size_t datum;
  Access access;
};

/// A task of the step; `data` in the order in which the kernels expect it (kernels.cpp).
struct Task {
  TaskKind kind;
  int stage;
  int worker;  // the logical worker that runs it
  std::optional<plan::JobId> job;
  std::vector<DataAccess> data;
};

/// All data and tasks of a step of `schedule`. Tasks are in an order that is sequentially consistent and
/// obeys every worker's order, as StarPU's implicit dependencies need it: accumulators are zeroed first;
/// jobs follow in topological order; then accumulators are closed, gradients are reduced and the holders'
/// optimizers run.
///
/// With recomputation it is B, or BW, that writes the stash: it reads what F read and computes F again first.
class TaskGraph {
 public:
  /// The schedule's and network's stage graphs must be equal; throws std::logic_error otherwise.
  TaskGraph(const plan::Schedule& schedule, const model::Network& network,
            const model::OptimizerConfig& optimizer);

  [[nodiscard]] const std::vector<Datum>& data() const { return data_; }
  [[nodiscard]] const std::vector<Task>& tasks() const { return tasks_; }

 private:
  class Builder;
  std::vector<Datum> data_;
  std::vector<Task> tasks_;
};

}  // namespace starpipe::runtime
