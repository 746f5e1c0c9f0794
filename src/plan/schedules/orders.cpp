// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedules/orders.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "starpipe/base/error.hpp"

namespace starpipe::plan {
namespace {

int cells_of(const BuildingBlock& block, Pass pass) { return pass == Pass::BW ? block.fused_cells : 1; }

using Passes = std::map<Job, const BlockPass*>;

// Throws unless `pass` comes after all passes that it waits for in a chain of stages. BW counts as B.
void check_order(const BuildingBlock& block, const Passes& passes, const BlockPass& pass) {
  const auto after = [&](Job job) {
    auto found = passes.find(job);
    if (found == passes.end() && job.pass == Pass::B) {
      job.pass = Pass::BW;
      found = passes.find(job);
    }
    if (found == passes.end()) throw InputError(fmt::format("building block: {} is missing", to_string(job)));
    if (pass.cell >= found->second->cell + cells_of(block, job.pass)) return;
    throw InputError(fmt::format("building block: {} in cell {} does not wait for {} in cell {}",
                                 to_string(pass.job), pass.cell, to_string(job), found->second->cell));
  };
  const auto [stage, microbatch, kind] = pass.job;
  if (kind == Pass::F && stage > 0) after({stage - 1, microbatch, Pass::F});
  if (kind == Pass::B || kind == Pass::BW) after({stage, microbatch, Pass::F});
  if ((kind == Pass::B || kind == Pass::BW) && stage + 1 < block.stages)
    after({stage + 1, microbatch, Pass::B});
  if (kind == Pass::W) after({stage, microbatch, Pass::B});
}

}  // namespace

void BuildingBlock::validate() const {
  constexpr std::int64_t max_cells = 20'000'000;
  if (std::int64_t{workers} * interval > max_cells) {
    throw InputError(fmt::format("building block: {} workers and an interval of {} are too many cells",
                                 workers, interval));
  }
  Passes found;
  std::vector<const BlockPass*> taken(index(workers) * index(interval), nullptr);
  for (const BlockPass& pass : passes) {
    found.emplace(pass.job, &pass);
    for (int c = pass.cell; c < pass.cell + cells_of(*this, pass.job.pass); ++c) {
      const BlockPass*& other = taken[index(pass.worker * interval + c % interval)];
      if (other != nullptr) {
        throw InputError(
            fmt::format("building block: {} and {} collide on worker {} when it repeats every {} cells",
                        to_string(other->job), to_string(pass.job), pass.worker, interval));
      }
      other = &pass;
    }
  }
  for (const BlockPass& pass : passes) check_order(*this, found, pass);
}

std::vector<int> BuildingBlock::peak_memory() const {
  std::map<std::pair<int, int>, std::pair<int, int>> lifespans;  // by stage, micro-batch: from, to
  std::vector<int> peaks(index(workers), 0);
  for (const BlockPass& pass : passes) {
    auto& [from, to] = lifespans[{pass.job.stage, pass.job.microbatch}];
    if (pass.job.pass == Pass::F) from = pass.cell;
    to = std::max(to, pass.cell + cells_of(*this, pass.job.pass));
  }
  for (const BlockPass& pass : passes) {
    if (pass.job.pass != Pass::F) continue;
    const auto [from, to] = lifespans[{pass.job.stage, pass.job.microbatch}];
    peaks[index(pass.worker)] += ceil_div(to - from, interval);
  }
  return peaks;
}

Schedule in_order(std::string name, const StageGraph& graph, int microbatches,
                  std::span<const std::vector<Job>> rows, const std::set<Job>& pairs) {
  struct Cell {
    int worker = 0;
    int position = -1;  // none
  };
  std::vector<Cell> cells(index(microbatches) * index(graph.size()) * pass_count);
  const auto cell = [&](const Job& job) -> Cell& {
    return cells[(index(job.microbatch) * index(graph.size()) + index(job.stage)) * pass_count +
                 index(job.pass)];
  };
  for (std::size_t w = 0; w < rows.size(); ++w) {
    int next = 0;
    bool is_second = false;
    for (const Job& job : rows[w]) {
      cell(job) = {static_cast<int>(w), next - (is_second ? 1 : 0)};
      is_second = pairs.contains(job);
      ++next;
    }
  }
  return Schedule({.name = std::move(name),
                   .graph = graph,
                   .microbatches = microbatches,
                   .workers = static_cast<int>(rows.size()),
                   .split_backward =
                       [&](int s, int b) {
                         return cell({s, b, Pass::B}).position >= 0;
                       },
                   .placement =
                       [&](const Job& job) {
                         const int worker = cell(job).worker;
                         return Placement{.weights = worker, .compute = worker};
                       },
                   .priority = [&](const Job& job) { return cell(job).position; },
                   .home =
                       [&](int s, int b) {
                         return cell({s, b, Pass::R}).position >= 0 ? Home::none : Home::worker;
                       },
                   .pairs = !pairs.empty()});
}

Grid::Grid(const BuildingBlock& block, int microbatches)
    : workers_(block.workers),
      stages_(block.stages),
      microbatches_(microbatches),
      period_(block.microbatches),
      fused_cells_(block.fused_cells),
      split_(std::ranges::any_of(block.passes, [](const BlockPass& p) { return p.job.pass == Pass::B; })),
      workers_of_(index(block.microbatches) * index(block.stages), 0),
      cells_(index(microbatches) * index(block.stages) * 3, absent) {
  block.validate();
  for (const BlockPass& pass : block.passes) {
    const auto [stage, first, type] = pass.job;
    workers_of_[index(first * stages_ + stage)] = pass.worker;
    const Kind kind = type == Pass::F ? forward : type == Pass::W ? weight_gradient : backward;
    for (int b = first, cell = pass.cell; b < microbatches; b += period_, cell += block.interval) {
      cells_[id(kind, stage, b)] = cell;
    }
  }
  place_weight_gradients();
}

// Returns the first cell after all passes that `id` waits for.
int Grid::ready(Id id, const std::vector<int>& cells) const {
  const int s = stage(id);
  const int b = microbatch(id);
  int cell = 0;
  const auto after = [&](Id other) { cell = std::max(cell, cells[other] + length(other)); };
  switch (kind(id)) {
    case forward:
      if (s > 0) after(this->id(forward, s - 1, b));
      break;
    case backward:
      after(this->id(forward, s, b));
      if (s + 1 < stages_) after(this->id(backward, s + 1, b));
      break;
    case weight_gradient:
      after(this->id(backward, s, b));
      break;
  }
  return cell;
}

int Grid::end() const { return *std::ranges::max_element(cells_) + std::max(fused_cells_, 1); }

// Sorted by cell, then by worker, with two counting sorts.
std::vector<Grid::Id> Grid::order() const {
  std::vector<Id> ids;
  for (Id id = 0; id < cells_.size(); ++id) {
    if (cells_[id] != absent) ids.push_back(id);
  }
  const auto sort = [&ids](std::size_t keys, auto&& key) {
    std::vector<std::size_t> next(keys + 1, 0);
    for (const Id id : ids) ++next[index(key(id)) + 1];
    for (std::size_t k = 0; k < keys; ++k) next[k + 1] += next[k];
    std::vector<Id> sorted(ids.size());
    for (const Id id : ids) sorted[next[index(key(id))]++] = id;
    ids = std::move(sorted);
  };
  sort(index(workers_), [this](Id id) { return worker(id); });
  sort(index(end()), [this](Id id) { return cells_[id]; });
  return ids;
}

void Grid::squeeze() {
  std::vector<int> squeezed(cells_.size(), absent);
  std::vector<int> free(index(workers_), 0);
  for (const Id id : order()) {
    int& next = free[index(worker(id))];
    squeezed[id] = std::max(next, ready(id, squeezed));
    next = squeezed[id] + length(id);
  }
  cells_ = std::move(squeezed);
}

// Gives each missing W an empty cell; the W that waits longest takes the first one.
void Grid::place_weight_gradients() {
  if (!split_) return;
  struct Waiting {
    int free = 0;
    std::deque<Id> passes;
  };
  std::vector<Waiting> rows(index(workers_));
  const auto place = [this](Waiting& row, int until) {
    for (; row.free < until && !row.passes.empty(); row.passes.pop_front()) {
      cells_[row.passes.front()] = row.free++;
    }
  };
  for (const Id id : order()) {
    Waiting& row = rows[index(worker(id))];
    place(row, cells_[id]);
    row.free = cells_[id] + length(id);
    if (kind(id) == backward && cells_[id + 1] == absent) row.passes.push_back(id + 1);
  }
  for (Waiting& row : rows) place(row, std::numeric_limits<int>::max());
}

void Grid::remove_weight_gradients() {
  for (Id id = weight_gradient; id < cells_.size(); id += 3) cells_[id] = absent;
}

std::vector<int> Grid::peak_memory() const {
  std::vector<int> live(index(workers_), 0);
  std::vector<int> peaks(index(workers_), 0);
  const Kind last = split_ ? weight_gradient : backward;
  for (const Id id : order()) {
    const auto w = index(worker(id));
    if (kind(id) == forward) peaks[w] = std::max(peaks[w], ++live[w]);
    if (kind(id) == last) --live[w];
  }
  return peaks;
}

std::vector<Job> Grid::jobs() const {
  std::vector<Job> jobs;
  jobs.reserve(cells_.size());
  for (const Id id : order()) {
    const Pass pass = kind(id) == forward           ? Pass::F
                      : kind(id) == weight_gradient ? Pass::W
                      : split_                      ? Pass::B
                                                    : Pass::BW;
    jobs.push_back({stage(id), microbatch(id), pass});
  }
  return jobs;
}

std::vector<std::vector<Job>> Grid::rows() const {
  std::vector<std::vector<Job>> rows(index(workers_));
  for (const Job& job : jobs()) rows[index(worker(job.stage, job.microbatch))].push_back(job);
  return rows;
}

void Grid::reorder(Steady steady, std::optional<int> peak) {
  constexpr std::int64_t max_cells = 50'000'000;
  if (std::int64_t{workers_} * end() > max_cells) {
    throw InputError(fmt::format("{} workers and {} micro-batches are too many cells to reorder", workers_,
                                 microbatches_));
  }
  const int max = peak.value_or(std::ranges::max(peak_memory()));
  move_earlier(max, false, steady);
  squeeze();
  if (!split_ || steady == Steady::moved) return;
  remove_weight_gradients();
  move_earlier(max, true, steady);
  place_weight_gradients();
  squeeze();
}

}  // namespace starpipe::plan
