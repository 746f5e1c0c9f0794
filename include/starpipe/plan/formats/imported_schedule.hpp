// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/schedule/stage_graph.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A schedule read from a file, and the costs the file states (unit costs where it states none).
struct ImportedSchedule {
  Schedule schedule;
  Costs costs;
};

/// The graph of so many stages, where a file does not tell; throws InputError for a number that cannot be.
using GraphOfStages = std::function<StageGraph(int stages)>;

/// Either of them, as the name's extension says; else JSON is what starts with a brace.
ImportedSchedule schedule_from_text(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph = StageGraph::chain);

}  // namespace starpipe::plan
