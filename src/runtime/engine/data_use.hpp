// SPDX-License-Identifier: Apache-2.0
// Tables that follow from a graph: which tasks concern a rank, which task uses a datum or a copy of it last,
// and which data use the same handle in turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/engine/task_graph.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

/// The tasks of a step that one rank inserts into StarPU, and the last of them that touches each datum.
struct RankTasks {
  static constexpr std::uint32_t unused = std::numeric_limits<std::uint32_t>::max();

  std::vector<std::uint32_t> tasks;     ///< indices into the graph's tasks, ascending
  std::vector<std::uint32_t> last_use;  ///< by datum: index into `tasks`, or `unused`
};

/// Returns the tasks that a rank inserts: it runs them, or it owns one of their inputs. StarPU-MPI's own rule
/// also inserts tasks that write a datum of which the rank may hold a cached copy. Here no rank holds one:
/// the engine drops every copy after its last reader in the step, before the next write.
///
/// `local`: by logical worker, true if it belongs to the rank.
RankTasks tasks_of_rank(const TaskGraph& graph, const std::vector<bool>& local);

/// Returns, by datum, true for the inputs and targets that a GPU gets as soon as their jobs are inserted, if
/// GPUs copy stashes. Those of all micro-batches of such a stage take no more memory than one of its stashes.
std::vector<bool> early_inputs(const TaskGraph& graph);

// Weights and gradients stay registered over the steps, so StarPU keeps the copies that a GPU fetched of them
// until the datum is written again. FetchedCopies tells when a copy is no longer needed.

/// Counts the readers of copies on the GPUs of this rank: copies of data that last over the steps and whose
/// writer is a worker of the same rank with another memory node. (The engine itself drops copies of other
/// ranks' data and of temporaries after their last reader on the rank.) Thread-safe.
class FetchedCopies {
 public:
  static constexpr int main_memory = 0;  ///< StarPU's memory node of the host's memory

  /// `nodes`: StarPU's memory node of each logical worker, -1 for workers of other ranks. The graph must
  /// outlive this object.
  FetchedCopies(const TaskGraph& graph, std::span<const int> nodes);

  using Copy = std::pair<std::size_t, int>;  ///< datum, memory node

  /// Returns the copies of weights, in the order of the tasks that read them first.
  [[nodiscard]] std::span<const Copy> weights() const { return weights_; }

  /// Call it before each step.
  void reset();

  /// Call it when `task` has ended on its worker. Returns the data whose copies on that worker's node no
  /// other task of the step will read.
  [[nodiscard]] std::vector<std::size_t> unread_after(const Task& task);

 private:
  [[nodiscard]] int node(int worker) const { return nodes_[index(worker)]; }
  [[nodiscard]] bool is_fetched(const DataAccess& access, int worker) const;

  const TaskGraph& graph_;
  std::vector<int> nodes_;
  std::map<Copy, int> readers_;  // number of tasks of a step that read the copy
  std::vector<Copy> weights_;
  std::mutex mutex_;
  std::map<Copy, int> left_;  // number of these tasks that have not ended
};

/// Gives each datum of a step a slot, which several data use in turn: StarPU needs one handle per slot, not
/// one per datum. A slot takes data of one kind, stage, size and writer. Data that last over the steps have
/// slots of their own.
///
/// The slots follow from the graph and the window alone, so all ranks give a datum the same slot.
class DataSlots {
 public:
  /// `window`: maximum number of tasks that a rank has submitted and not finished; nullopt: every datum has
  /// its own slot, because only the order of an ordered schedule, which has a window, proves that sharing is
  /// safe. A datum may take the slot of an earlier datum in two cases. Either worker orders and data
  /// dependencies imply that the jobs that touch the earlier datum end some jobs before the first job that
  /// touches the new datum. Or at least `window` tasks of the graph lie between these jobs: beyond the window
  /// no task is inserted.
  ///
  /// StarPU makes the first task of a slot's new datum wait for all tasks of the old datum. In the first case
  /// these have ended. In the second case it waits for tasks before it in the graph's order, as all tasks do,
  /// so there is no new cycle; a worker only waits if it is this far ahead of another worker.
  ///
  /// `moves_stashes`: StarPU moves a stash between the memories of a GPU and of its host, and the stash keeps
  /// its handle. The task graph has two data for it, the result of F and the result of L. They share a slot.
  /// All copies of the schedule must be to the host.
  DataSlots(const TaskGraph& graph, std::optional<int> window, bool moves_stashes = false);

  [[nodiscard]] std::size_t of(std::size_t datum) const { return slots_[datum]; }
  /// True if a later datum has the same value in the same slot.
  [[nodiscard]] bool continues(std::size_t datum) const { return !continues_.empty() && continues_[datum]; }
  [[nodiscard]] std::size_t count() const { return count_; }

 private:
  std::size_t count_ = 0;
  std::vector<std::uint32_t> slots_;  // by datum
  std::vector<bool> continues_;       // by datum; empty where none does
};

}  // namespace starpipe::runtime
