// SPDX-License-Identifier: Apache-2.0
#include "plan/search/framework_stages.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/search/layout.hpp"

namespace starpipe::plan {
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

/// Whether each worker has as many stages as the others, in this layout.
bool has_layout(const Partition& partition, int workers, Layout layout) {
  const auto stages = static_cast<int>(partition.stage_workers.size());
  return stages % workers == 0 &&
         partition.stage_workers == layout_workers(layout, workers, stages / workers);
}

/// The units of each stage: calls `add(unit)` for each of them between calls of `end_stage()`.
template <class Add, class EndStage>
void for_each_stage(const Partition& partition, std::size_t units, Add add, EndStage end_stage) {
  std::size_t unit = 0;
  for (std::size_t s = 0; s <= partition.cuts.size(); ++s) {
    const std::size_t end = s < partition.cuts.size() ? index(partition.cuts[s]) : units;
    for (; unit < end; ++unit) add(unit);
    end_stage();
  }
}

}  // namespace

std::string megatron_stages(std::span<const UnitCosts> units, const Partition& partition, int workers) {
  require_transformer(units);
  if (!has_layout(partition, workers, Layout::loop)) {
    throw InputError(fmt::format("Megatron-LM has stage s on rank s mod {}; the stages are on workers {}",
                                 workers, fmt::join(partition.stage_workers, ", ")));
  }
  std::vector<std::string> stages(1);
  int blocks = 0;
  const auto end_blocks = [&] {
    if (blocks > 0) stages.back() += blocks == 1 ? "t" : fmt::format("t*{}", blocks);
    blocks = 0;
  };
  for_each_stage(
      partition, units.size(),
      [&](std::size_t unit) {
        if (unit == 0) {
          stages.back() += "E";
        } else if (unit + 1 == units.size()) {
          end_blocks();
          stages.back() += "L";
        } else {
          ++blocks;
        }
      },
      [&] {
        end_blocks();
        stages.emplace_back();
      });
  stages.pop_back();
  return fmt::format("--pipeline-model-parallel-size {}\n--pipeline-model-parallel-layout \"{}\"\n", workers,
                     fmt::join(stages, "|"));
}

std::string torchtitan_stages(std::span<const UnitCosts> units, const Partition& partition, int workers) {
  require_transformer(units);
  const auto count = static_cast<int>(partition.stage_workers.size());
  const bool v = count == 2 * workers && has_layout(partition, workers, Layout::v);
  if (!v && !has_layout(partition, workers, Layout::loop)) {
    throw InputError(
        fmt::format("torchtitan has as many stages on each of {} ranks, in a loop, or two in a V; the stages "
                    "are on workers {}",
                    workers, fmt::join(partition.stage_workers, ", ")));
  }
  std::vector<std::string> stages;
  std::vector<std::string> modules;
  for_each_stage(
      partition, units.size(),
      [&](std::size_t unit) {
        if (unit == 0) {
          modules.emplace_back("\"tok_embeddings\"");
        } else if (unit + 1 == units.size()) {
          modules.insert(modules.end(), {"\"norm\"", "\"output\""});
        } else {
          modules.push_back(fmt::format("\"layers.{}\"", unit - 1));
        }
      },
      [&] {
        stages.push_back(fmt::format("  [{}]", fmt::join(modules, ", ")));
        modules.clear();
      });
  const bool several = count > workers;
  const std::string_view note =
      !several ? ""
      : v      ? "# For a schedule with two stages a rank in a V, such as ZBVZeroBubble.\n"
               : "# For a schedule with several stages a rank in a loop, such as Interleaved1F1B.\n";
  return fmt::format(
      "# For torchtitan 0.2. Later versions are configured in Python; from May 2026 on \"output\" is called\n"
      "# \"lm_head\" there.\n{}[parallelism]\npipeline_parallel_degree = {}\n"
      "module_fqns_per_model_part = [\n{},\n]\n",
      note, workers, fmt::join(stages, ",\n"));
}

}  // namespace starpipe::plan
