// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "starpipe/plan/schedules/orders.hpp"

namespace starpipe::plan {

/// The cells of one worker. A W without a cell of its own waits for the next empty cell.
class CellRow {
 public:
  enum Cell : std::uint8_t { empty, starts_stash, works, leaves_w, ends_stash };

  void resize(int cells);
  /// Fills `length` cells from `cell` on. The last cell becomes `last`, the cells before it `works`. When
  /// `last` is `empty`, all become empty.
  void set(int cell, int length, Cell last);
  [[nodiscard]] bool is_empty(int cell, int length) const;
  [[nodiscard]] int size() const { return static_cast<int>(cells_.size()); }

  /// Counts live stashes again from cell `from` on, after changes to cells before `until`. Returns size(), or
  /// the first cell in which more than `peak` stashes would be live; then the counts stay as they were.
  int recount(int from, int until, int peak);

 private:
  struct State {
    int live = 0;
    int waiting = 0;  // W passes without a cell
    friend bool operator==(const State&, const State&) = default;
  };

  [[nodiscard]] State before(int cell) const;
  // Advances the state over a cell. Returns the number of stashes that are live in the cell.
  int step(State& state, int cell) const;

  std::vector<Cell> cells_;
  std::vector<State> after_;
  std::vector<State> changed_;
};

/// Moves passes of the warm-up and the cool-down to earlier cells, in the order of the grid (Controllable
/// Memory, appendix C).
class Grid::Sweep {
 public:
  /// With `w_waits`, the grid has no W: W passes take the empty cells, and only the cool-down moves.
  Sweep(Grid& grid, int peak, bool w_waits, Steady steady);
  void run();

 private:
  using Row = CellRow;

  // The W passes of a worker are alike: the k-th W waits for the k-th B. `run` assigns them to stages and
  // micro-batches at its end.
  struct Queue {
    std::vector<int> ready;   // cells after B, ascending
    std::size_t started = 0;  // W passes
    int last_end = 0;
  };

  Row& row(Id id);
  [[nodiscard]] Row::Cell last_cell(Id id) const;
  void assign_weight_gradients();
  // Returns the first cell that `id` may move to: after the passes that it waits for, and after the same pass
  // of the micro-batch before. W passes keep their order.
  [[nodiscard]] int earliest(Id id) const;
  void move(Id id);

  Grid& grid_;
  int peak_;
  bool w_waits_;
  Steady steady_;
  std::vector<Id> order_;
  std::vector<Row> rows_;
  std::vector<Queue> queues_;
};

}  // namespace starpipe::plan
