// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include <nlohmann/json.hpp>
#include <pybind11/stl.h>

#include "base/files.hpp"
#include "plan/drawing/page.hpp"
#include "plan/formats/json_value.hpp"
#include "plan/formats/results.hpp"
#include "python/core/bind.hpp"
#include "python/core/dataclasses.hpp"
#include "starpipe/plan/drawing/schedule_text.hpp"
#include "starpipe/plan/formats/schedule_csv.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"

namespace starpipe::python {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;
using Releasing = py::call_guard<py::gil_scoped_release>;

py::tuple read_schedule(const std::string& file) {
  const plan::ImportedSchedule read = [&] {
    const py::gil_scoped_release released;
    return plan::schedule_from_text(read_file(file), file);
  }();
  return py::make_tuple(read.schedule, read.costs, read.unit);
}

/// Returns the members that JSON and page have besides the run's own, as JSON text; empty: none.
nlohmann::ordered_json members(const std::string& more) {
  return more.empty() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::parse(more);
}

/// Binds a form of a run: a function of schedule, costs, timeline, unit, reordering and more members.
template <class Form>
void bind_form(py::module_& module, const char* name, Form form) {
  module.def(
      name,
      [form](const plan::Schedule& schedule, const plan::Costs& costs, const plan::Timeline& timeline,
             const std::string& unit, const std::optional<plan::Reordering>& reordering,
             const std::string& more) {
        return form(plan::PredictedRun{schedule, costs, timeline, unit, reordering}, members(more));
      },
      "schedule"_a, "costs"_a, "timeline"_a, "unit"_a, "reordering"_a, "more"_a, Releasing());
}

}  // namespace

void bind_forms(py::module_& module) {
  using More = nlohmann::ordered_json;
  bind_form(module, "run_json", [](const plan::PredictedRun& run, const More& more) {
    return plan::json_text(plan::predicted_json(run, more));
  });
  bind_form(module, "run_csv", [](const plan::PredictedRun& run, const More& /*more*/) {
    return plan::schedule_csv(run.schedule, run.timeline);
  });
  bind_form(module, "run_svg",
            [](const plan::PredictedRun& run, const More& /*more*/) { return plan::predicted_svg(run); });
  bind_form(module, "run_trace",
            [](const plan::PredictedRun& run, const More& /*more*/) { return plan::predicted_trace(run); });
  bind_form(module, "run_page", plan::predicted_page);
  module.def(
      "run_text",
      [](const plan::Schedule& schedule, const plan::Timeline& timeline, const std::string& unit,
         int columns) { return plan::schedule_text(schedule, timeline, {.columns = columns, .unit = unit}); },
      "schedule"_a, "timeline"_a, "unit"_a, "columns"_a, Releasing());
  module.def("lost_in_csv", &plan::lost_in_csv, "schedule"_a);
  module.def("read_schedule", read_schedule, "file"_a);
  module.def(
      "write_file",
      [](const std::string& option, const std::string& file, const std::string& text) {
        write_file(option, file, text);
      },
      "option"_a, "file"_a, "text"_a, Releasing());
  module.def(
      "require_suffix",
      [](const std::string& option, const std::string& file, const std::vector<std::string>& suffixes) {
        const std::vector<std::string_view> views(suffixes.begin(), suffixes.end());
        require_suffix(option, file, views);
      },
      "option"_a, "file"_a, "suffixes"_a);
  module.def("has_page", &plan::has_page);
}

}  // namespace starpipe::python
