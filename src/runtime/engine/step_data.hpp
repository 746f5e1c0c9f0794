// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <starpu.h>

#include "runtime/engine/handle.hpp"
#include "runtime/session/session.hpp"
#include "runtime/session/worker_backend.hpp"
#include "runtime/step/fetched_copies.hpp"
#include "runtime/step/rank_tasks.hpp"
#include "runtime/step/task_graph.hpp"
#include "starpipe/base/require.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Owns the data of a step on this rank: StarPU's handles, the host memory behind those that last over the
/// steps, and the scratch memory of the stages. Fills inputs and targets, and drops copies; RankTasks and
/// FetchedCopies know when. The thread that submits the step calls all of it, except `drop_fetched`, which
/// the workers on GPUs call.
class StepData {
 public:
  /// Registers the data that tasks of this rank touch. `parameters`: start values of each stage. The
  /// references must outlive this.
  StepData(const Session& session, const plan::Schedule& schedule, const model::Network& network,
           const TaskGraph& graph, const RankTasks& tasks, std::span<const std::vector<float>> parameters);

  [[nodiscard]] starpu_data_handle_t handle(std::size_t datum) const { return handles_[datum].get(); }
  /// Scratch memory that is large enough for a pass on each worker that may run it.
  [[nodiscard]] starpu_data_handle_t scratch(const Task& task) const;
  /// The rank that owns a datum: the rank of its writer.
  [[nodiscard]] int owner(const Datum& datum) const { return session_.map().rank_of(datum.worker); }
  [[nodiscard]] bool is_mine(const Datum& datum) const { return session_.is_local(datum.worker); }

  /// Fills the inputs and targets of step `step` from `data`; nullptr: nothing is computed from them, and
  /// they are only marked as written. Call it before the tasks of the step are inserted.
  void begin_step(int step, const model::Dataset* data);

  /// Calls `use` with the values of a datum that this rank owns and that lasts over the steps. Waits for the
  /// tasks that write it. `name`: for messages.
  template <class Use>
  void read(std::size_t datum, std::string_view name, Use use) const {
    require(starpu_data_acquire(handle(datum), STARPU_R), "StarPU", "reading", name);
    use(std::span<const float>(memory_[datum]));
    starpu_data_release(handle(datum));
  }

  /// Call it after the insertion of the rank's last task that touches the datum in the step. Frees copies of
  /// other ranks' data and temporaries; owners forget the ranks that they sent the datum to.
  void drop(std::size_t datum) const;

  /// Call it when `task` has ended on its worker, a GPU. Drops the GPU's copies of lasting data of other
  /// workers of this rank that no later task of the step reads there. StarPU would keep them until the
  /// datum is written again. The writer has the value, so nothing is written back. Thread-safe.
  void drop_fetched(const Task& task);

 private:
  [[nodiscard]] std::vector<float> start_value(const Datum& datum,
                                               std::span<const std::vector<float>> parameters) const;
  void register_datum(std::size_t number, std::span<const std::vector<float>> parameters);
  void register_scratch();
  [[nodiscard]] int node(int worker) const { return nodes_[index(worker)]; }

  const Session& session_;
  const plan::Schedule& schedule_;
  const model::Network& network_;
  const TaskGraph& graph_;
  std::vector<int> nodes_;                  // StarPU's memory node of each logical worker; -1 on other ranks
  std::optional<FetchedCopies> fetched_;    // when some workers are GPUs and the worker of each task is known
  std::vector<std::vector<float>> memory_;  // by datum; empty unless this rank's host provides it
  std::vector<PinnedMemory> pinned_;        // the part of `memory_` that GPUs copy from and to
  std::vector<Handle> handles_;             // by datum
  std::array<std::vector<Handle>, 2> scratch_;  // of cores and of GPUs, by stage
};

}  // namespace starpipe::runtime
