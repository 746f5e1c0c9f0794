// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// Where one pass of a building block lies: on `worker`, from `cell` on. A cell is one unit of time.
struct BlockPass {
  Job job;  ///< its micro-batch counts from 0 within the block
  int worker = 0;
  int cell = 0;
};

/// The passes of one micro-batch, or of a few, which a schedule repeats every `interval` cells (source 004,
/// section 2). F, B and W take a cell each; BW takes `fused_cells`. Chunks per worker, loop and V layouts,
/// replicas of a stage, fused or split backward passes are all data: which worker has which pass, and when.
///
/// A block of split passes may leave W out: then W takes the cells that the other passes leave empty, as
/// soon as they come (`Grid::place_weight_gradients`).
struct BuildingBlock {
  int workers = 1;
  int stages = 1;
  int microbatches = 1;
  int interval = 1;
  int fused_cells = 2;
  std::vector<BlockPass> passes;

  /// Throws InputError, naming the two passes, when repetitions of the block would overlap on a worker
  /// (004, section 2.3), or naming the one that comes before a pass it waits for, or when `workers *
  /// interval` is too much to keep. The stages are a chain.
  void validate() const;

  /// Per worker, 004's equation 1: the sum over its stages of ceil(lifespan / interval), an upper bound on
  /// the stashes that it holds at once however often the block repeats. Needs every pass, W included.
  [[nodiscard]] std::vector<int> peak_memory() const;
};

/// A building block repeated for B micro-batches on unit cells: the passes' times before squeezing. The
/// stages are a chain.
class Grid {
 public:
  /// Repeats the block (`validate`d first). O(jobs).
  Grid(const BuildingBlock& block, int microbatches);

  /// Whether `reorder` moves passes of the steady phase, too.
  enum class Steady : std::uint8_t { kept, moved };

  /// Reorders (004, appendix C). Warm-up, which ends with the first backward pass of stage 0: each pass
  /// moves to the earliest empty cells of its worker after what it waits for, unless more than `peak` stashes
  /// would be live: when absent, those that the repeated block holds. Cool-down, which begins with the first
  /// of the last micro-batch's forward passes: the same, and where the steady phase is kept once more without
  /// W, which then takes what is left. Ends squeezed. O(jobs + moves * cells of warm-up and cool-down).
  /// Throws InputError when there are too many cells to keep.
  void reorder(Steady steady, std::optional<int> peak = {});

  /// Takes out empty time: each pass starts as soon as it can, in the order it has on its worker.
  void squeeze();

  /// Every pass, by cell and then by worker: an order in which none comes before one that it waits for.
  [[nodiscard]] std::vector<Job> jobs() const;
  /// The same, a row a worker.
  [[nodiscard]] std::vector<std::vector<Job>> rows() const;

  [[nodiscard]] int worker(int stage, int microbatch) const {
    return workers_of_[static_cast<std::size_t>(microbatch % period_) * static_cast<std::size_t>(stages_) +
                       static_cast<std::size_t>(stage)];
  }
  /// Per worker, the most stashes live at once.
  [[nodiscard]] std::vector<int> peak_memory() const;

 private:
  enum Kind : std::uint8_t { forward, backward, weight_gradient };
  using Id = std::uint32_t;
  static constexpr int absent = -1;

  class Sweep;

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

/// The schedule in which worker w runs the jobs of `rows[w]` in that order, and holds the weights of what it
/// runs. Each job once; with BW the backward pass of a stage and micro-batch is fused. Discipline: ordered.
Schedule in_order(std::string name, const StageGraph& graph, int microbatches,
                  std::span<const std::vector<Job>> rows);

}  // namespace starpipe::plan
