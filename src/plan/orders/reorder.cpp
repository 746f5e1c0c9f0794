// SPDX-License-Identifier: Apache-2.0
// Source 004, appendix C: warm-up and cool-down use the memory that only the steady phase needs.
#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/orders/building_block.hpp"

namespace starpipe::plan {
namespace {

// One worker's cells. A W without a cell of its own waits for the next empty one.
class Row {
 public:
  enum Cell : std::uint8_t { empty, starts_stash, works, leaves_w, ends_stash };

  void resize(int cells) {
    cells_.assign(index(cells), empty);
    after_.assign(index(cells), {});
  }
  void set(int cell, int length, Cell what) {
    for (int c = cell; c < cell + length - 1; ++c) cells_[index(c)] = what == empty ? empty : works;
    cells_[index(cell + length - 1)] = what;
  }
  [[nodiscard]] bool is_empty(int cell, int length) const {
    return std::all_of(cells_.begin() + cell, cells_.begin() + cell + length,
                       [](Cell c) { return c == empty; });
  }
  [[nodiscard]] int size() const { return static_cast<int>(cells_.size()); }

  // Counts again from `from` on, where cells up to `until` have changed. Returns the first cell where more
  // than `peak` stashes would be live, and then keeps the counts as they were, or size().
  int recount(int from, int until, int peak) {
    State state = before(from);
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

  [[nodiscard]] State before(int cell) const { return cell == 0 ? State{} : after_[index(cell) - 1]; }

  // Returns the stashes that are live in the cell.
  int step(State& state, int c) const {
    const Cell cell = cells_[index(c)];
    if (cell == starts_stash) ++state.live;
    const int live = state.live;
    if (cell == leaves_w) ++state.waiting;
    const bool takes_w = cell == empty && state.waiting > 0;
    if (takes_w) --state.waiting;
    if (takes_w || cell == ends_stash) --state.live;
    return live;
  }

  std::vector<Cell> cells_;
  std::vector<State> after_;
  std::vector<State> changed_;
};

}  // namespace

// Moves passes of the warm-up and cool-down to earlier cells, in the order of the grid.
class Grid::Sweep {
 public:
  /// `w_waits`: the grid has no W, which takes the empty cells. Then only the cool-down moves.
  Sweep(Grid& grid, int peak, bool w_waits, Steady steady)
      : grid_(grid),
        peak_(peak),
        w_waits_(w_waits),
        steady_(steady),
        order_(grid.order()),
        rows_(index(grid.workers_)),
        queues_(rows_.size()) {
    for (Row& row : rows_) row.resize(grid.end());
    for (const Id id : order_) row(id).set(grid.cells_[id], grid.length(id), what(id));
    for (Row& row : rows_) row.recount(0, row.size(), std::numeric_limits<int>::max());
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
    serve_in_turn();
  }

 private:
  Row& row(Id id) { return rows_[index(grid_.worker(id))]; }

  [[nodiscard]] Row::Cell what(Id id) const {
    switch (kind(id)) {
      case forward:
        return Row::starts_stash;
      case weight_gradient:
        return Row::ends_stash;
      case backward:
        break;
    }
    if (!grid_.split_) return Row::ends_stash;
    return w_waits_ ? Row::leaves_w : Row::works;
  }

  // The W passes of a worker are alike: the k-th one waits for the k-th B and is given to it in the end.
  struct Queue {
    std::vector<int> ready;   // cells after B, ascending
    std::size_t started = 0;  // W
    int last_end = 0;
  };

  void serve_in_turn() {
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

  // Not before what it waits for, nor before the same pass of the micro-batch before; W in turn.
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
    Row& row = this->row(id);
    const Row::Cell pass = what(id);
    const int old = grid_.cells_[id];
    const int length = grid_.length(id);
    row.set(old, length, Row::empty);
    int cell = earliest(id);
    while (cell < old) {
      if (!row.is_empty(cell, length)) {
        ++cell;
        continue;
      }
      row.set(cell, length, pass);
      if (pass == Row::works) break;  // changes no count
      const int over = row.recount(cell, old + length, peak_);
      if (over == row.size()) break;
      row.set(cell, length, Row::empty);
      // A stash that begins before `over` is one too many there. Other passes may still fit in between.
      cell = kind(id) == forward ? over + 1 : cell + 1;
    }
    if (cell >= old) {
      row.set(old, length, pass);
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
  std::vector<Row> rows_;
  std::vector<Queue> queues_;
};

void Grid::reorder(Steady steady, std::optional<int> peak) {
  constexpr std::int64_t most_cells = 50'000'000;
  if (std::int64_t{workers_} * end() > most_cells) {
    throw InputError(fmt::format("{} workers and {} micro-batches are too many cells to reorder", workers_,
                                 microbatches_));
  }
  const int most = peak.value_or(std::ranges::max(peak_memory()));
  Sweep(*this, most, false, steady).run();
  squeeze();
  if (!split_ || steady == Steady::moved) return;
  remove_weight_gradients();
  Sweep(*this, most, true, steady).run();
  place_weight_gradients();
  squeeze();
}

}  // namespace starpipe::plan
