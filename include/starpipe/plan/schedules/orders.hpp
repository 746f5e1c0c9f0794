// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/schedule/stage_graph.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// One pass of a building block. It runs on `worker` and starts in `cell`; a cell is one unit of time.
struct BlockPass {
  Job job;  ///< micro-batches are numbered from 0 within the block
  int worker = 0;
  int cell = 0;
};

/// The passes of one micro-batch, or of a few. A schedule repeats them every `interval` cells (Controllable
/// Memory, section 2). F, B and W take one cell each; BW takes `fused_cells`. The worker and the cell of each
/// pass express chunks per worker, loop and V layouts, replicas of a stage, and fused or split backward
/// passes.
///
/// A block of split passes may leave W out. Each W then takes the first cell after its B that the other
/// passes leave empty (`Grid::place_weight_gradients`).
struct BuildingBlock {
  int workers = 1;
  int stages = 1;
  int microbatches = 1;
  int interval = 1;
  int fused_cells = 2;
  std::vector<BlockPass> passes;

  /// Throws InputError when repetitions of the block would overlap on a worker (Controllable Memory,
  /// section 2.3), naming the two passes; when a pass comes before a pass that it waits for, naming both; or
  /// when `workers * interval` cells are too many to keep. The stages are a chain.
  void validate() const;

  /// Returns, for each worker, equation 1 of Controllable Memory: the sum over its stages of ceil(lifespan /
  /// interval). This bounds the number of stashes that it holds at once, however often the block repeats.
  /// Needs every pass, W included.
  [[nodiscard]] std::vector<int> peak_memory() const;
};

/// Returns the schedule in which worker w runs the jobs of `rows[w]` in that order, with the weights on the
/// same worker. `rows` has each job once, with either BW or both B and W for a stage and micro-batch. Each F
/// in `pairs` is a pair with the backward pass behind it. The discipline is ordered.
Schedule in_order(std::string name, const StageGraph& graph, int microbatches,
                  std::span<const std::vector<Job>> rows, const std::set<Job>& pairs = {});

/// A building block repeated for B micro-batches: the unit cells in which its passes run. The stages are a
/// chain.
class Grid {
 public:
  /// Validates the block and repeats it. O(jobs).
  Grid(const BuildingBlock& block, int microbatches);

  /// Says whether `reorder` moves passes of the steady phase, too.
  enum class Steady : std::uint8_t { kept, moved };

  /// Reorders (Controllable Memory, appendix C). Each pass of the warm-up and of the cool-down moves to the
  /// earliest empty cells of its worker that are after the passes it waits for and in which at most `peak`
  /// stashes are live. Without `peak`, the limit is the peak of the repeated block. The warm-up ends with the
  /// first backward pass of stage 0; the cool-down begins with the first forward pass of the last
  /// micro-batch. Where the steady phase is kept, the passes of the cool-down move once more without the W
  /// passes, which then take the cells that are left. Ends squeezed. O(jobs + moves * cells of warm-up and
  /// cool-down). Throws InputError when there are too many cells to keep.
  void reorder(Steady steady, std::optional<int> peak = {});

  /// Removes empty time: each pass starts as soon as it can, in the order of its worker.
  void squeeze();

  /// Returns every pass, by cell and then by worker. Each comes after all passes that it waits for.
  [[nodiscard]] std::vector<Job> jobs() const;
  /// Returns the same passes, one row for each worker.
  [[nodiscard]] std::vector<std::vector<Job>> rows() const;

  [[nodiscard]] int worker(int stage, int microbatch) const {
    return workers_of_[index(microbatch % period_) * index(stages_) + index(stage)];
  }
  /// Returns, for each worker, the largest number of stashes that are live at once.
  [[nodiscard]] std::vector<int> peak_memory() const;

 private:
  enum Kind : std::uint8_t { forward, backward, weight_gradient };
  using Id = std::uint32_t;
  static constexpr int absent = -1;

  class EarlierMoves;

  [[nodiscard]] Id id(Kind kind, int stage, int microbatch) const {
    return static_cast<Id>((microbatch * stages_ + stage) * 3 + kind);
  }
  [[nodiscard]] static Kind kind(Id id) { return static_cast<Kind>(id % 3); }
  [[nodiscard]] int stage(Id id) const { return static_cast<int>(id / 3) % stages_; }
  [[nodiscard]] int microbatch(Id id) const { return static_cast<int>(id / 3) / stages_; }
  [[nodiscard]] int worker(Id id) const { return worker(stage(id), microbatch(id)); }
  [[nodiscard]] int length(Id id) const { return !split_ && kind(id) == backward ? fused_cells_ : 1; }
  [[nodiscard]] int ready(Id id, const std::vector<int>& cells) const;
  [[nodiscard]] int end() const;
  [[nodiscard]] std::vector<Id> order() const;
  /// Moves passes of the warm-up and the cool-down to earlier cells, in the order of the grid. With
  /// `w_waits`, the grid has no W: W passes take the empty cells, and only the cool-down moves.
  void move_earlier(int peak, bool w_waits, Steady steady);
  void place_weight_gradients();
  void remove_weight_gradients();

  int workers_;
  int stages_;
  int microbatches_;
  int period_;
  int fused_cells_;
  bool split_;
  std::vector<int> workers_of_;  // by micro-batch of the block, stage
  std::vector<int> cells_;       // by Id; absent where the grid has no such pass
};

/// Adds the W passes to a schedule (Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1). Returns
/// the jobs of each worker in order.
///
/// `passes` are F and B, each after all passes that it waits for; each worker keeps their order. W among them
/// are ignored. W passes run while a worker would otherwise wait, and when its memory is full; the W that
/// waits longest goes first. No worker holds more than `limit` stashes, where that is possible. Several rules
/// are tried for running W where it delays the next pass a little. The result has the shortest device span
/// and, among equals, the shortest makespan. O(jobs). Does not support `costs.prefetch == false`.
std::vector<std::vector<Job>> with_weight_gradients(
    std::span<const Job> passes, const StageGraph& graph, int workers, int microbatches,
    const std::function<int(int stage, int microbatch)>& worker, int limit, const Costs& costs);

}  // namespace starpipe::plan
