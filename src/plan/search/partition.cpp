// SPDX-License-Identifier: Apache-2.0
#include "plan/search/partition.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/numbers.hpp"
#include "plan/search/partition_problem.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/search/search_problem.hpp"

namespace starpipe::plan {
namespace {

Partition with_loads(const PartitionProblem& problem, Stages stages, bool proven) {
  Partition result;
  result.loads = problem.loads(stages);
  result.bottleneck = std::ranges::max(result.loads, {}, &WorkerLoad::load).load();
  result.lower_bound = proven ? result.bottleneck : problem.lower_bound(Goal::bottleneck);
  result.cuts = std::move(stages.cuts);
  result.stage_workers = std::move(stages.workers);
  return result;
}

bool fits(const PartitionProblem& problem, const Stages& stages) {
  int worker = 0;
  return std::ranges::all_of(problem.loads(stages),
                             [&](const WorkerLoad& load) { return problem.fits(worker++, load.memory); });
}

[[noreturn]] void fail_for_memory(const PartitionProblem& problem, double min, bool proven) {
  if (problem.request().memory_limits.size() > 1) {
    throw InputError(
        fmt::format("partition: no partition was found within the memory limits of the workers; with one "
                    "limit for all, {:.0f} "
                    "bytes are enough",
                    std::ceil(min)));
  }
  const double limit = problem.request().memory_limits.front();
  if (proven) {
    throw InputError(fmt::format(
        "partition: the memory limit of {:.0f} bytes is too small for every partition; the smallest "
        "limit that works is {:.0f}",
        limit, std::ceil(min)));
  }
  throw InputError(
      fmt::format("partition: no partition was found within the memory limit of {:.0f} bytes; the smallest "
                  "limit of a partition found is {:.0f}, and none fits below {:.0f}",
                  limit, std::ceil(min), std::ceil(problem.lower_bound(Goal::memory))));
}

}  // namespace

Partition partition(const PartitionRequest& request) {
  const PartitionProblem problem(request);
  const std::set<int> distinct(request.stage_workers.begin(), request.stage_workers.end());
  const bool one_each =
      request.allocation != Allocation::general && distinct.size() == request.stage_workers.size();
  const auto search = [&](Goal goal) {
    return one_each ? BestStages{one_stage_each(problem, problem.units(), goal), true}
                    : branch_and_bound(problem, goal);
  };
  BestStages found = search(Goal::bottleneck);
  if (found.stages) return with_loads(problem, std::move(*found.stages), found.proven);
  BestStages smallest = search(Goal::memory);
  if (fits(problem, *smallest.stages)) return with_loads(problem, std::move(*smallest.stages), false);
  fail_for_memory(problem, value_of(problem, Goal::memory, *smallest.stages), smallest.proven);
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

namespace {

/// Throws InputError unless the units are an embedding, blocks and a head.
void require_transformer(std::span<const UnitCosts> units) {
  const auto refuse = [](std::size_t unit, const std::string& name, std::string_view wanted) {
    throw InputError(
        fmt::format("unit {} is called '{}', but must be called '{}': the stages of a transformer are an "
                    "embedding, blocks and a head",
                    unit, name, wanted));
  };
  if (units.front().name != "embedding") refuse(0, units.front().name, "embedding");
  if (units.size() < 2 || units.back().name != "head") refuse(units.size() - 1, units.back().name, "head");
}

/// True if each worker has as many stages as the others, in this layout.
bool has_layout(const Partition& partition, int workers, Layout layout) {
  const auto stages = static_cast<int>(partition.stage_workers.size());
  return stages % workers == 0 &&
         partition.stage_workers == layout_workers(layout, workers, stages / workers);
}

/// Returns the units of each stage.
std::vector<UnitRange> stage_ranges(const Partition& partition, std::size_t units) {
  std::vector<UnitRange> ranges;
  int begin = 0;
  for (const int cut : partition.cuts) ranges.push_back({std::exchange(begin, cut), cut});
  ranges.push_back({begin, static_cast<int>(units)});
  return ranges;
}

/// Throws InputError unless each worker has a stage, as in the programs that read the formats.
void require_stage_per_worker(const Partition& partition, std::size_t units, int workers) {
  const std::set<int> used(partition.stage_workers.begin(), partition.stage_workers.end());
  if (std::ssize(used) == workers) return;
  throw InputError(
      fmt::format("each of {} ranks needs a stage, but {} of the network ({}) leave {} without one; "
                  "use --workers {}",
                  workers, counted_text(std::ssize(partition.stage_workers), "stage"),
                  counted_text(static_cast<std::int64_t>(units), "unit"),
                  counted_text(workers - std::ssize(used), "worker"), used.size()));
}

}  // namespace

std::string megatron_stages(std::span<const UnitCosts> units, const Partition& partition, int workers) {
  require_transformer(units);
  require_stage_per_worker(partition, units.size(), workers);
  if (!has_layout(partition, workers, Layout::loop)) {
    throw InputError(fmt::format("Megatron-LM has stage s on rank s mod {}; the stages are on workers {}",
                                 workers, fmt::join(partition.stage_workers, ", ")));
  }
  const auto head = static_cast<int>(units.size()) - 1;
  std::vector<std::string> stages;
  for (const auto [begin, end] : stage_ranges(partition, units.size())) {
    const int blocks = std::min(end, head) - std::max(begin, 1);
    std::string& stage = stages.emplace_back(begin == 0 ? "E" : "");
    if (blocks > 0) stage += blocks == 1 ? "t" : fmt::format("t*{}", blocks);
    if (end > head) stage += "L";
  }
  return fmt::format("--pipeline-model-parallel-size {}\n--pipeline-model-parallel-layout \"{}\"\n", workers,
                     fmt::join(stages, "|"));
}

std::string torchtitan_stages(std::span<const UnitCosts> units, const Partition& partition, int workers) {
  require_transformer(units);
  require_stage_per_worker(partition, units.size(), workers);
  const auto count = static_cast<int>(partition.stage_workers.size());
  const bool v = count == 2 * workers && has_layout(partition, workers, Layout::v);
  if (!v && !has_layout(partition, workers, Layout::loop)) {
    throw InputError(
        fmt::format("torchtitan has as many stages on each of {} ranks, in a loop, or two in a V; the stages "
                    "are on workers {}",
                    workers, fmt::join(partition.stage_workers, ", ")));
  }
  const auto head = static_cast<int>(units.size()) - 1;
  std::vector<std::string> stages;
  for (const auto [begin, end] : stage_ranges(partition, units.size())) {
    std::vector<std::string> modules;
    if (begin == 0) modules.emplace_back("\"tok_embeddings\"");
    for (int unit = std::max(begin, 1); unit < std::min(end, head); ++unit)
      modules.push_back(fmt::format("\"layers.{}\"", unit - 1));
    if (end > head) modules.insert(modules.end(), {"\"norm\"", "\"output\""});
    stages.push_back(fmt::format("  [{}]", fmt::join(modules, ", ")));
  }
  const bool several = count > workers;
  const std::string_view note =
      !several ? ""
      : v      ? "# For a schedule with two stages per rank in a V, such as ZBVZeroBubble.\n"
               : "# For a schedule with several stages per rank in a loop, such as Interleaved1F1B.\n";
  return fmt::format(
      "# For torchtitan 0.2. Later versions are configured in Python; from May 2026 on \"output\" is called\n"
      "# \"lm_head\" there.\n{}[parallelism]\npipeline_parallel_degree = {}\n"
      "module_fqns_per_model_part = [\n{},\n]\n",
      note, workers, fmt::join(stages, ",\n"));
}

}  // namespace starpipe::plan
