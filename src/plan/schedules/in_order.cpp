// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedules/in_order.hpp"

#include <utility>

#include "starpipe/base/index.hpp"

namespace starpipe::plan {

Schedule in_order(std::string name, const StageGraph& graph, int microbatches,
                  std::span<const std::vector<Job>> rows) {
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
    for (const Job& job : rows[w]) cell(job) = {static_cast<int>(w), next++};
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
                   .priority = [&](const Job& job) { return cell(job).position; }});
}

}  // namespace starpipe::plan
