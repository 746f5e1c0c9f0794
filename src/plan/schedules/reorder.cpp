// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedules/orders.hpp"

namespace starpipe::plan {
namespace {

/// The cells of one worker. A W without a cell of its own waits for the next empty cell.
class CellRow {
 public:
  enum Cell : std::uint8_t { empty, starts_stash, works, leaves_w, ends_stash };

  explicit CellRow(int cells) : cells_(index(cells), empty), after_(index(cells)) {}

  /// Fills `length` cells from `cell` on. The last cell becomes `last`, the cells before it `works`. When
  /// `last` is `empty`, all become empty.
  void set(int cell, int length, Cell last) {
    for (int c = cell; c < cell + length - 1; ++c) cells_[index(c)] = last == empty ? empty : works;
    cells_[index(cell + length - 1)] = last;
  }

  [[nodiscard]] bool is_empty(int cell, int length) const {
    return std::all_of(cells_.begin() + cell, cells_.begin() + cell + length,
                       [](Cell c) { return c == empty; });
  }
  [[nodiscard]] int size() const { return static_cast<int>(cells_.size()); }

  /// Counts live stashes again from cell `from` on, after changes to cells before `until`. Returns size(), or
  /// the first cell in which more than `peak` stashes would be live; then the counts stay as they were.
  int recount(int from, int until, int peak) {
    State state = from == 0 ? State{} : after_[index(from) - 1];
    changed_.clear();
    for (int c = from; c < size(); ++c) {
      if (step(state, c) > peak) return c;
      if (c >= until && state == after_[index(c)]) break;
      changed_.push_back(state);
    }
    std::ranges::copy(changed_, after_.begin() + from);
    return size();
  }

 private:
  struct State {
    int live = 0;
    int waiting = 0;  // W passes without a cell
    friend bool operator==(const State&, const State&) = default;
  };

  // Advances the state over a cell. Returns the number of stashes that are live in the cell.
  int step(State& state, int cell) const {
    const Cell content = cells_[index(cell)];
    if (content == starts_stash) ++state.live;
    const int live = state.live;
    if (content == leaves_w) ++state.waiting;
    const bool takes_w = content == empty && state.waiting > 0;
    if (takes_w) --state.waiting;
    if (takes_w || content == ends_stash) --state.live;
    return live;
  }

  std::vector<Cell> cells_;
  std::vector<State> after_;
  std::vector<State> changed_;
};

}  // namespace

class Grid::EarlierMoves {
 public:
  EarlierMoves(Grid& grid, int peak, bool w_waits, Steady steady)
      : grid_(grid),
        peak_(peak),
        w_waits_(w_waits),
        steady_(steady),
        order_(grid.order()),
        rows_(index(grid.workers_), CellRow(grid.end())),
        queues_(rows_.size()) {
    for (const Id id : order_) row(id).set(grid.cells_[id], grid.length(id), last_cell(id));
    for (CellRow& row : rows_) row.recount(0, row.size(), std::numeric_limits<int>::max());
    for (const Id id : order_) {
      if (kind(id) != backward) continue;
      queues_[index(grid.worker(id))].ready.push_back(grid.cells_[id] + grid.length(id));
    }
  }

  void run() {
    enum class Phase : std::uint8_t { warm_up, steady, cool_down } phase = Phase::warm_up;
    for (const Id id : order_) {
      const bool first_exit = steady_ == Steady::kept && kind(id) == backward && grid_.stage(id) == 0;
      if (phase == Phase::warm_up && first_exit) phase = Phase::steady;
      const bool last_entry = kind(id) == forward && grid_.stage(id) < grid_.workers_ &&
                              grid_.microbatch(id) == grid_.microbatches_ - 1;
      if (phase == Phase::steady && last_entry) {
        phase = Phase::cool_down;
      } else if (phase == Phase::cool_down || (phase == Phase::warm_up && !w_waits_)) {
        move(id);
      }
      if (kind(id) == weight_gradient) {
        Queue& queue = queues_[index(grid_.worker(id))];
        ++queue.started;
        queue.last_end = grid_.cells_[id] + 1;
      }
    }
    assign_weight_gradients();
  }

 private:
  // The W passes of a worker are alike: the k-th W waits for the k-th B. `run` assigns them to stages and
  // micro-batches at its end.
  struct Queue {
    std::vector<int> ready;   // cells after B, ascending
    std::size_t started = 0;  // W passes
    int last_end = 0;
  };

  CellRow& row(Id id) { return rows_[index(grid_.worker(id))]; }

  [[nodiscard]] CellRow::Cell last_cell(Id id) const {
    switch (kind(id)) {
      case forward:
        return CellRow::starts_stash;
      case weight_gradient:
        return CellRow::ends_stash;
      case backward:
        break;
    }
    if (!grid_.split_) return CellRow::ends_stash;
    return w_waits_ ? CellRow::leaves_w : CellRow::works;
  }

  void assign_weight_gradients() {
    std::vector<std::vector<Id>> waiting(queues_.size());
    std::vector<std::size_t> served(queues_.size(), 0);
    std::vector<int> cells = grid_.cells_;
    for (const Id id : grid_.order()) {
      const auto w = index(grid_.worker(id));
      if (kind(id) == backward) waiting[w].push_back(id + 1);
      if (kind(id) == weight_gradient) cells[waiting[w][served[w]++]] = grid_.cells_[id];
    }
    grid_.cells_ = std::move(cells);
  }

  // Returns the first cell that `id` may move to: after the passes that it waits for, and after the same pass
  // of the micro-batch before. W passes keep their order.
  [[nodiscard]] int earliest(Id id) const {
    if (kind(id) == weight_gradient) {
      const Queue& queue = queues_[index(grid_.worker(id))];
      return std::max(queue.ready[queue.started], queue.last_end);
    }
    int cell = grid_.ready(id, grid_.cells_);
    if (grid_.microbatch(id) > 0) {
      const Id before = grid_.id(kind(id), grid_.stage(id), grid_.microbatch(id) - 1);
      cell = std::max(cell, grid_.cells_[before] + grid_.length(before));
    }
    return cell;
  }

  void move(Id id) {
    CellRow& row = this->row(id);
    const CellRow::Cell last = last_cell(id);
    const int old = grid_.cells_[id];
    const int length = grid_.length(id);
    row.set(old, length, CellRow::empty);
    int cell = earliest(id);
    while (cell < old) {
      if (!row.is_empty(cell, length)) {
        ++cell;
        continue;
      }
      row.set(cell, length, last);
      if (last == CellRow::works) break;  // changes no count
      const int over = row.recount(cell, old + length, peak_);
      if (over == row.size()) break;
      row.set(cell, length, CellRow::empty);
      // A stash that begins before `over` is one too many there. Other passes may still fit in between.
      cell = kind(id) == forward ? over + 1 : cell + 1;
    }
    if (cell >= old) {
      row.set(old, length, last);
      return;
    }
    grid_.cells_[id] = cell;
    if (kind(id) == backward) {
      std::vector<int>& ready = queues_[index(grid_.worker(id))].ready;
      const auto was = std::ranges::lower_bound(ready, old + length);
      const auto is = std::ranges::lower_bound(ready, cell + length);
      *was = cell + length;
      std::rotate(is, was, was + 1);
    }
  }

  Grid& grid_;
  int peak_;
  bool w_waits_;
  Steady steady_;
  std::vector<Id> order_;
  std::vector<CellRow> rows_;
  std::vector<Queue> queues_;
};

void Grid::move_earlier(int peak, bool w_waits, Steady steady) {
  EarlierMoves(*this, peak, w_waits, steady).run();
}

}  // namespace starpipe::plan
