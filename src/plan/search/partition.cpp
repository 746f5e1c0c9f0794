// SPDX-License-Identifier: Apache-2.0
#include "plan/search/partition.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "plan/search/branch_and_bound.hpp"
#include "plan/search/one_stage_each.hpp"
#include "plan/search/partition_problem.hpp"
#include "starpipe/base/error.hpp"

namespace starpipe::plan {
namespace {

using detail::Goal;
using detail::PartitionProblem;
using detail::Stages;

Partition with_loads(const PartitionProblem& problem, Stages stages, bool proven) {
  Partition result;
  result.loads = problem.loads(stages);
  for (const WorkerLoad& load : result.loads) result.bottleneck = std::max(result.bottleneck, load.load());
  result.lower_bound = proven ? result.bottleneck : problem.lower_bound(Goal::bottleneck);
  result.cuts = std::move(stages.cuts);
  result.stage_workers = std::move(stages.workers);
  return result;
}

double most_memory(const PartitionProblem& problem, const Stages& stages) {
  double most = 0;
  for (const WorkerLoad& load : problem.loads(stages)) most = std::max(most, load.memory);
  return most;
}

bool fits(const PartitionProblem& problem, const Stages& stages) {
  int worker = 0;
  return std::ranges::all_of(problem.loads(stages),
                             [&](const WorkerLoad& load) { return problem.fits(worker++, load.memory); });
}

[[noreturn]] void fail_for_memory(const PartitionProblem& problem, double least, bool proven) {
  if (problem.request().memory_limits.size() > 1) {
    throw InputError(
        fmt::format("partition: no partition was found within the memory limits of the workers; with one "
                    "limit for all, {:.0f} "
                    "bytes are enough",
                    std::ceil(least)));
  }
  const double limit = problem.request().memory_limits.front();
  if (proven) {
    throw InputError(fmt::format(
        "partition: the memory limit of {:.0f} bytes is too small for every partition; the smallest "
        "limit that works is {:.0f}",
        limit, std::ceil(least)));
  }
  throw InputError(
      fmt::format("partition: no partition was found within the memory limit of {:.0f} bytes; the smallest "
                  "limit of a partition found is {:.0f}, and none fits below {:.0f}",
                  limit, std::ceil(least), std::ceil(problem.lower_bound(Goal::memory))));
}

}  // namespace

Partition partition(const PartitionRequest& request) {
  const PartitionProblem problem(request);
  const std::set<int> distinct(request.stage_workers.begin(), request.stage_workers.end());
  const bool one_each =
      request.allocation != Allocation::general && distinct.size() == request.stage_workers.size();
  const auto search = [&](Goal goal) {
    return one_each ? detail::BestStages{detail::one_stage_each(problem, problem.units(), goal), true}
                    : detail::branch_and_bound(problem, goal);
  };
  detail::BestStages found = search(Goal::bottleneck);
  if (found.stages) return with_loads(problem, std::move(*found.stages), found.proven);
  detail::BestStages smallest = search(Goal::memory);
  const double least = most_memory(problem, *smallest.stages);
  if (fits(problem, *smallest.stages)) return with_loads(problem, std::move(*smallest.stages), false);
  fail_for_memory(problem, least, smallest.proven);
}

std::string cuts_problem(std::span<const int> cuts, int units) {
  int before = 0;
  for (const int cut : cuts) {
    if (cut <= before || cut >= units) {
      return fmt::format("{} is not ascending within the units 1 to {}", cut, units - 1);
    }
    before = cut;
  }
  return "";
}

Partition evaluate_partition(const PartitionRequest& request, std::vector<int> cuts,
                             std::vector<int> stage_workers) {
  PartitionRequest placed = request;
  placed.allocation = Allocation::placed;
  placed.stage_workers = stage_workers;
  const PartitionProblem problem(placed);
  if (cuts.size() + 1 != stage_workers.size()) {
    throw InputError(fmt::format("partition: {} cuts make {} stages, not {}", cuts.size(), cuts.size() + 1,
                                 stage_workers.size()));
  }
  const std::string unfit = cuts_problem(cuts, problem.units());
  if (!unfit.empty()) throw InputError("partition: cut " + unfit);
  return with_loads(problem, {std::move(cuts), std::move(stage_workers)}, false);
}

}  // namespace starpipe::plan
