// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/formats/imported_schedule.hpp"

#include "base/files.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"

namespace starpipe::plan {

ImportedSchedule schedule_from_text(std::string_view text, const std::string& source_name,
                                    const GraphOfStages& graph) {
  const auto first = text.find_first_not_of(" \t\r\n");
  const std::string suffix = suffix_of(source_name);
  const bool brace = first != std::string_view::npos && text[first] == '{';
  if (suffix == ".json" || (brace && suffix != ".csv")) {
    return schedule_from_json(text, source_name, graph);
  }
  return {schedule_from_csv(text, source_name, graph), Costs{}};
}

}  // namespace starpipe::plan
