// SPDX-License-Identifier: Apache-2.0
#include "plan/schedules/sweep.hpp"

#include <algorithm>
#include <limits>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

void CellRow::resize(int cells) {
  cells_.assign(index(cells), empty);
  after_.assign(index(cells), {});
}

void CellRow::set(int cell, int length, Cell last) {
  for (int c = cell; c < cell + length - 1; ++c) cells_[index(c)] = last == empty ? empty : works;
  cells_[index(cell + length - 1)] = last;
}

bool CellRow::is_empty(int cell, int length) const {
  return std::all_of(cells_.begin() + cell, cells_.begin() + cell + length,
                     [](Cell c) { return c == empty; });
}

int CellRow::recount(int from, int until, int peak) {
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

CellRow::State CellRow::before(int cell) const { return cell == 0 ? State{} : after_[index(cell) - 1]; }

int CellRow::step(State& state, int cell) const {
  const Cell content = cells_[index(cell)];
  if (content == starts_stash) ++state.live;
  const int live = state.live;
  if (content == leaves_w) ++state.waiting;
  const bool takes_w = content == empty && state.waiting > 0;
  if (takes_w) --state.waiting;
  if (takes_w || content == ends_stash) --state.live;
  return live;
}

Grid::Sweep::Sweep(Grid& grid, int peak, bool w_waits, Steady steady)
    : grid_(grid),
      peak_(peak),
      w_waits_(w_waits),
      steady_(steady),
      order_(grid.order()),
      rows_(index(grid.workers_)),
      queues_(rows_.size()) {
  for (Row& row : rows_) row.resize(grid.end());
  for (const Id id : order_) row(id).set(grid.cells_[id], grid.length(id), last_cell(id));
  for (Row& row : rows_) row.recount(0, row.size(), std::numeric_limits<int>::max());
  for (const Id id : order_) {
    if (kind(id) != backward) continue;
    queues_[index(grid.worker(id))].ready.push_back(grid.cells_[id] + grid.length(id));
  }
}

void Grid::Sweep::run() {
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

Grid::Sweep::Row& Grid::Sweep::row(Id id) { return rows_[index(grid_.worker(id))]; }

Grid::Sweep::Row::Cell Grid::Sweep::last_cell(Id id) const {
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

void Grid::Sweep::assign_weight_gradients() {
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

int Grid::Sweep::earliest(Id id) const {
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

void Grid::Sweep::move(Id id) {
  Row& row = this->row(id);
  const Row::Cell last = last_cell(id);
  const int old = grid_.cells_[id];
  const int length = grid_.length(id);
  row.set(old, length, Row::empty);
  int cell = earliest(id);
  while (cell < old) {
    if (!row.is_empty(cell, length)) {
      ++cell;
      continue;
    }
    row.set(cell, length, last);
    if (last == Row::works) break;  // changes no count
    const int over = row.recount(cell, old + length, peak_);
    if (over == row.size()) break;
    row.set(cell, length, Row::empty);
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

}  // namespace starpipe::plan
