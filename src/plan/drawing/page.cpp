// SPDX-License-Identifier: Apache-2.0
#include "plan/drawing/page.hpp"

#include <cstddef>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/drawing/timeline_data.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/version.hpp"

namespace starpipe::plan {
namespace {

using nlohmann::ordered_json;

constexpr int data_version = 1;  // viewer/src/data.ts has the same

ordered_json schedule_data(const Schedule& schedule) {
  ordered_json data = {{"name", schedule.name()},
                       {"workers", schedule.workers()},
                       {"stages", schedule.stages()},
                       {"microbatches", schedule.microbatches()},
                       {"passes", schedule.split_backward() ? 3 : 2},
                       {"discipline", to_string(schedule.discipline())},
                       {"recompute", schedule.recompute()}};
  if (!schedule.graph().is_chain()) data["edges"] = schedule.graph().edges();
  if (!schedule.graph().shards().empty()) {
    for (int s = 0; s < schedule.stages(); ++s) data["labels"].push_back(schedule.graph().label(s));
  }
  if (!schedule.memory_limits().empty()) data["memory_limits"] = schedule.memory_limits();
  return data;
}

ordered_json run_data(const PageRun& run) {
  std::vector<const RecordedStep*> steps;
  for (const PageTimeline& timeline : run.timelines) steps.push_back(timeline.step);
  const Ticks ticks(steps);
  ordered_json timelines = ordered_json::array();
  for (const PageTimeline& timeline : run.timelines)
    timelines.push_back(timeline_data(timeline, run.costs, ticks));
  return {{"title", run.title},
          {"unit", run.unit},
          {"tick", ticks.length()},
          {"has_bytes", run.costs.has_sizes()},
          {"schedule", schedule_data(run.timelines.front().step->planned)},
          {"timelines", std::move(timelines)},
          {"report", run.report != nullptr ? *run.report : ordered_json()}};
}

/// ASCII without "<", ">" and "&", which JSON has in strings only: so an HTML parser sees text, whatever the
/// strings are, and "</script>" or "<!--" in them ends nothing.
std::string script_text(const ordered_json& data) {
  const std::string dumped = data.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  std::string text;
  text.reserve(dumped.size() + dumped.size() / 64);
  for (const char c : dumped) {
    switch (c) {
      case '<':
        text += "\\u003c";
        break;
      case '>':
        text += "\\u003e";
        break;
      case '&':
        text += "\\u0026";
        break;
      default:
        text += c;
    }
  }
  return text;
}

}  // namespace

PageRun compared_page_run(const std::string& title, const ComparedRun& run, const ordered_json& report) {
  return {.title = title,
          .unit = "s",
          .costs = run.costs,
          .timelines = {{"predicted", &run.predicted}, {run.found, &run.measured}},
          .report = &report};
}

ordered_json report_for_page(ordered_json report) {
  if (!report.is_object()) return report;
  report.erase("offsets");
  if (const auto explain = report.find("explain"); explain != report.end() && explain->is_object())
    explain->erase("record");
  if (const auto policies = report.find("policies"); policies != report.end() && policies->is_array()) {
    for (ordered_json& policy : *policies) {
      if (policy.is_object()) policy.erase("record");
    }
  }
  return report;
}

bool has_page() { return !page_template().empty(); }

void require_page(std::string_view option) {
  if (has_page()) return;
  throw InputError(
      fmt::format("{}: this starpipe was built without the report page; install npm and build it again "
                  "(docs/install.md)",
                  option));
}

std::string report_page(std::span<const PageRun> runs) {
  require_page("report page");
  const std::string_view page = page_template();
  const std::size_t mark = page.find(data_mark);
  if (mark == std::string_view::npos) throw std::logic_error("the page has no place for data");
  ordered_json data = {{"version", data_version},
                       {"program", fmt::format("starpipe {} ({})", starpipe::version, commit())},
                       {"runs", ordered_json::array()}};
  for (const PageRun& run : runs) data["runs"].push_back(run_data(run));
  std::string html(page.substr(0, mark));
  html += script_text(data);
  html += page.substr(mark + data_mark.size());
  return html;
}

}  // namespace starpipe::plan
