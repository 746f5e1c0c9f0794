// SPDX-License-Identifier: Apache-2.0
// One training step as tasks over data: the engine inserts these tasks into StarPU, and the meter counts
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "starpipe/model/network.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Settings of the run that decide which tasks a step has besides jobs and gradient sums: norms, and
/// verdicts, in which workers collect facts about the whole step. Also the size of the run's evaluations.
struct StepRules {
  /// True if the norm of the gradient is computed. False if jobs are emulated.
  bool has_norm = true;
  /// True if the update is skipped when a pass, or the gradient, is not finite (`training.nonfinite: skip`).
  bool can_skip = false;
  /// Micro-batches of each evaluation of the run; 0: there are no evaluations. They use the scratch memory of
  /// the steps.
  int evaluated = 0;
};

enum class DataKind : std::uint8_t {
  weights,  // in the precision that passes read; one for each holder; lasts over the steps
  master,   // the parameters in fp32, only when `weights` are in bf16; one for each holder, like `weights`
  optimizer_state,  // one for each holder, like `weights`
  weight_gradient,  // accumulator, one for each worker that runs W or BW and each holder; lasts over the
                    // steps
  input,            // of a source, one for each worker that reads it; the host fills it before its readers
  target,           // of a stage that reads it, as `input`
  loss,             // the host reads it after the step
  verdict,          // what a worker knows of the whole step: class Verdict; in the host's memory
  activation,  // this kind and the next ones are written once per step and dropped after their last reader
  stash,
  gradient,
  gradient_stash,
  keys_values,           // of a slice, for the later slices of its sequences and for its own B
  keys_values_gradient,  // of all slices up to one; the slice after hands it to this one
  end_of_pass,           // one word, for a job that waits for another one and reads no result of it
  gradient_segment,      // of a weight gradient, on its way to another worker: class GradientSegment
};

/// True if StarPU allocates the memory at the first write and frees it after the last reader. Otherwise the
/// host provides the memory, and may read it between steps.
constexpr bool is_temporary(DataKind kind) { return kind >= DataKind::activation; }

/// True if the host fills the datum before the tasks that read it: a micro-batch's input or target.
constexpr bool is_from_host(DataKind kind) { return kind == DataKind::input || kind == DataKind::target; }

/// Returns the kind's name in messages, such as "weight gradient".
std::string_view to_string(DataKind kind);

/// The size of the largest datum, in words of 4 bytes: StarPU counts the elements of a vector in 32 bits.
inline constexpr std::uint64_t max_datum_words = std::numeric_limits<std::uint32_t>::max();

/// A piece of data of the step. Only one worker writes it: its writer.
struct Datum {
  DataKind kind;
  int stage;         // activation: the stage whose output it is; gradient: the stage whose output's gradient
                     // it is; parameters and their gradient: the number of their set (Network::sets)
  int microbatch;    // -1 for data that last over the steps
  int worker;        // the logical worker that writes it
  std::size_t size;  // words of 4 bytes

  [[nodiscard]] std::uint64_t bytes() const { return std::uint64_t{size} * sizeof(float); }
};

enum class Access : std::uint8_t {
  read,
  write,
  update,      // read and write
  accumulate,  // add to it, until a `close` task, in the order that the policy chooses
  precede,     // does not touch the memory; the next task that writes the datum waits for this task
};

enum class TaskKind : std::uint8_t {
  zero,  // clears an accumulator
  F,
  B,
  W,
  BW,
  R,
  O,
  L,
  close,     // takes an accumulator exclusively, after all tasks that accumulate
  segment,   // takes a segment of the worker's sum, for another worker
  add,       // adds another worker's segment to the worker's own sum
  copy,      // takes a finished segment of another worker over into the worker's own sum
  judge,     // begins a worker's verdict: notes if passes of the worker found infinity or NaN
  norm,      // adds a stage's gradient to a holder's verdict: the sum of squares of each parameter
  merge,     // joins another worker's verdict into the worker's own
  optimize,  // updates the weights of a holder; a verdict may clip the gradient or skip the update
};

std::string_view to_string(TaskKind kind);
/// F, B, W, BW or R: it computes.
constexpr bool is_pass(TaskKind kind) { return kind >= TaskKind::F && kind <= TaskKind::R; }

/// O or L: it copies.
constexpr bool is_stash_copy(TaskKind kind) { return kind == TaskKind::O || kind == TaskKind::L; }

struct DataAccess {
  std::uint32_t datum;  // its number in TaskGraph::data()
  Access access;
};

/// Where a segment of a weight gradient belongs.
struct GradientSegment {
  std::size_t first;   ///< index of its first word in the gradient
  std::uint32_t from;  ///< the accumulator that it is a segment of: datum of the sender
  /// The datum in which the receiver of a finished segment sent its own sum of the same words before.
  std::optional<std::uint32_t> replaces;
};

/// A task of the step. The order of `data`: segment, add, copy, norm and merge have the source, then the
/// target; an `optimize` that waits for a verdict has the verdict first. Kernels of passes find their data by
/// kind; data of one kind are in the order of the stage's predecessors or successors.
struct Task {
  TaskKind kind;
  int stage;   // for a task that is not a pass: the set of parameters
  int worker;  // the logical worker that runs it
  std::optional<plan::JobId> job;
  std::span<const DataAccess> data;           // the graph owns them
  std::optional<plan::Channel> channel = {};  // of `worker`, for O and L
  int microbatch = -1;                        // of `job`
};

/// Returns the task's name for people: F(2,0) for F of stage 2, micro-batch 0; else kind and stage or set.
std::string name_of(const Task& task, const plan::Schedule& schedule);

/// A set of parameters: the parameters of one stage, or parameters that several stages share.
struct SetParameters {
  std::vector<int> stages;         ///< the stages that use it
  std::size_t size = 0;            ///< numbers of all its parameters together
  std::size_t first = 0;           ///< index of its first parameter among all parameters of the network
  std::vector<std::size_t> sizes;  ///< numbers of each parameter
  std::vector<model::DecayRange> ranges;

  /// Returns the stage to name in messages.
  [[nodiscard]] int first_stage() const { return stages.front(); }
};

/// All data and tasks of a step of `schedule`. Their order is a valid sequential order that keeps the order
/// of each worker: StarPU derives implicit dependencies from it. Accumulators are zeroed first. Jobs follow
/// in topological order. Then accumulators are closed, gradients are reduced (plan::reduction_plan), each
/// segment as a datum of its own, and the holders' optimizers run.
///
/// When the gradient of a set is complete, one of its holders computes the sum of squares of each parameter
/// for its verdict (`norm`). All holders have the same gradient, bit by bit; different sets choose different
/// holders, in turn. The verdicts are joined up a binary tree of workers, so the first worker with a verdict
/// knows the norm after the step. If the gradient is clipped or the update may be skipped, updates wait: the
/// complete verdict goes down the same tree to all holders. In a graph that can skip updates, verdicts also
/// know if the values of all passes were finite.
///
/// A set of parameters that several stages share has its weights on the holders of the first of these stages.
/// Each worker that computes W or BW of such a stage has an accumulator, which all of these stages use.
///
/// Where a stash has no home, R reads the inputs of F, computes F again and writes the stash. Where a stash
/// is copied, it is two data: F writes the first, which O reads, and L writes the second, which B and W read.
/// If it waits on another worker, O runs there and writes a third one, which L reads. Where n makes a job
/// wait for memory, it reads the word `end_of_pass` of the job that frees the memory.
///
/// The graph of a schedule of forward passes alone (`plan::forward_passes`) is an evaluation: it reads the
/// weights, writes losses, and has no other tasks than jobs. A source's F also reads the loss of the
/// micro-batch 2 max(micro-batches of the training schedule, workers) before. It does not use the loss, but
/// waits for it: so a worker that is faster than the others does not fill the memory with activations.
class TaskGraph {
 public:
  /// The schedule's and network's stage graphs must be equal; throws std::logic_error otherwise.
  TaskGraph(const plan::Schedule& schedule, const model::Network& network,
            const model::OptimizerConfig& optimizer, const StepRules& rules = {});
  // Tasks point to their accesses, which a move leaves where they are.
  TaskGraph(TaskGraph&&) = default;
  TaskGraph& operator=(TaskGraph&&) = default;
  TaskGraph(const TaskGraph&) = delete;
  TaskGraph& operator=(const TaskGraph&) = delete;
  ~TaskGraph() = default;
  /// Returns an evaluation. `schedule`: of the training; `forward`: its plan::forward_passes.
  static TaskGraph evaluation(const plan::Schedule& schedule, const plan::Schedule& forward,
                              const model::Network& network);

  [[nodiscard]] const std::vector<Datum>& data() const { return data_; }
  [[nodiscard]] const std::vector<Task>& tasks() const { return tasks_; }
  [[nodiscard]] const StepRules& rules() const { return rules_; }
  /// Returns the sets of parameters, as Network::sets() numbers them.
  [[nodiscard]] const std::vector<SetParameters>& parameters() const { return parameters_; }
  /// Returns where a datum of the kind `gradient_segment` belongs.
  [[nodiscard]] const GradientSegment& segment(std::size_t datum) const {
    return segments_[datum - first_segment_];
  }
  /// Returns the datum with the verdict that is complete after a step; nullopt in a graph without norms or
  /// without parameters.
  [[nodiscard]] std::optional<std::size_t> complete_verdict() const;
  /// Returns the number of the first datum of this kind, stage (or set of parameters) and writer; nullopt if
  /// there is none.
  [[nodiscard]] std::optional<std::size_t> find(DataKind kind, int stage, int worker) const;
  /// Returns the index in tasks() of one of its elements.
  [[nodiscard]] std::size_t number_of(const Task& task) const {
    return static_cast<std::size_t>(&task - tasks_.data());
  }

 private:
  class Builder;
  TaskGraph() = default;

  StepRules rules_;
  std::vector<SetParameters> parameters_;
  std::vector<Datum> data_;
  std::size_t first_segment_ = 0;  // segments are the last data
  std::vector<GradientSegment> segments_;
  // Owns the accesses of tasks, to which they have spans; a vector that grows would move them.
  std::unique_ptr<std::pmr::monotonic_buffer_resource> memory_ =
      std::make_unique<std::pmr::monotonic_buffer_resource>();
  std::vector<Task> tasks_;
};

}  // namespace starpipe::runtime
