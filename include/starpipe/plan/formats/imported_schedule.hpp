// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/schedule/stage_graph.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// A schedule read from a file, and the costs that the file states (unit costs where it states none).
struct ImportedSchedule {
  Schedule schedule;
  Costs costs;
  std::string unit = {};  ///< of the costs' times: "s", or empty when it has no name
};

/// Gives the stage graph of a file that does not state one. Throws InputError when no graph has this number
/// of stages.
using GraphOfStages = std::function<StageGraph(int stages)>;

/// Reads a schedule from JSON (`schedule_from_json`) or CSV (`schedule_from_csv`). The extension of
/// `source_name` decides; without a known extension, a text that starts with a brace is JSON. Throws
/// InputError as these do.
ImportedSchedule schedule_from_text(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph = StageGraph::chain);

}  // namespace starpipe::plan
