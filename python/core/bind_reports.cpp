// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <pybind11/stl.h>

#include "base/files.hpp"
#include "plan/drawing/page.hpp"
#include "plan/explain/critical_path.hpp"
#include "plan/explain/idle_causes.hpp"
#include "plan/formats/compared_run_json.hpp"
#include "plan/formats/explanation.hpp"
#include "plan/formats/report_file.hpp"
#include "plan/formats/what_if_answers.hpp"
#include "python/core/bind.hpp"
#include "python/core/dataclasses.hpp"

namespace starpipe::python {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;
using Releasing = py::call_guard<py::gil_scoped_release>;
using plan::RecordedStep;

/// Returns the parts of idle time and of the critical path as tuples, for dataclasses of the package.
std::vector<py::tuple> idle(const RecordedStep& step) {
  std::vector<py::tuple> parts;
  for (const plan::IdlePart& part : plan::idle_parts(step))
    parts.push_back(py::make_tuple(part.worker, part.start, part.end, std::string(to_string(part.cause)),
                                   part.next, part.producer, part.from, part.held_back));
  return parts;
}

std::vector<py::tuple> path(const RecordedStep& step) {
  constexpr std::array kinds = {"compute", "transfer", "runtime"};
  std::vector<py::tuple> parts;
  for (const plan::PathPart& part : plan::critical_path(step))
    parts.push_back(py::make_tuple(part.start, part.end, kinds.at(static_cast<std::size_t>(part.kind)),
                                   part.job, part.from));
  return parts;
}

void bind_step(py::module_& module) {
  py::class_<RecordedStep>(module, "Step")
      .def_readonly("planned", &RecordedStep::planned)
      .def_readonly("as_run", &RecordedStep::as_run)
      .def_readonly("timeline", &RecordedStep::timeline)
      .def("idle", idle)
      .def("critical_path", path);
  module.def(
      "simulated_step",
      [](const plan::Schedule& schedule, const plan::Costs& costs) {
        return plan::simulated_step(schedule, costs);
      },
      "schedule"_a, "costs"_a, Releasing());
}

struct Explained {
  std::string text;
  std::string json;
};

Explained explain(const plan::ComparedRun& run, const std::vector<std::string>& what_if) {
  const std::vector<plan::WhatIf> changes = plan::parse_what_ifs(what_if);
  const std::vector<plan::Answer> answers = plan::answers(changes, run);
  return {plan::explanation_text(run, answers), plan::explain_json(run, answers).dump()};
}

void bind_run(py::module_& module) {
  using plan::ComparedRun;
  py::class_<ComparedRun>(module, "ComparedRun")
      .def_readonly("predicted", &ComparedRun::predicted)
      .def_readonly("measured", &ComparedRun::measured)
      .def_readonly("costs", &ComparedRun::costs)
      .def_readonly("first_step", &ComparedRun::first_step)
      .def_readonly("median_step", &ComparedRun::median_step)
      .def_property_readonly("last_step", &ComparedRun::last_step);
  module.def(
      "explain",
      [](const ComparedRun& run, const std::vector<std::string>& what_if) {
        const Explained explained = [&] {
          const py::gil_scoped_release released;
          return explain(run, what_if);
        }();
        return py::make_tuple(explained.text, explained.json);
      },
      "run"_a, "what_if"_a);
}

/// Returns the run's timelines by title.
std::vector<std::pair<std::string, const RecordedStep*>> timelines(const plan::ReportRun& run) {
  std::vector<std::pair<std::string, const RecordedStep*>> all;
  for (const plan::PageTimeline& timeline : run.page.timelines)
    all.emplace_back(timeline.title, timeline.step);
  return all;
}

void bind_file(py::module_& module) {
  using plan::ReportFile;
  using plan::ReportRun;
  constexpr auto internal = py::return_value_policy::reference_internal;
  py::class_<ReportRun, std::unique_ptr<ReportRun, py::nodelete>>(module, "ReportRun")
      .def_readonly("schedule", &ReportRun::schedule)
      .def_property_readonly(
          "compared", [](const ReportRun& self) { return self.compared ? &*self.compared : nullptr; },
          internal)
      .def_property_readonly("costs", [](const ReportRun& self) { return self.page.costs; })
      .def_property_readonly("unit", [](const ReportRun& self) { return self.page.unit; })
      .def_property_readonly("json", [](const ReportRun& self) { return self.report.dump(); })
      .def_property_readonly("timelines", timelines, internal);
  py::class_<ReportFile, std::shared_ptr<ReportFile>>(module, "ReportFile")
      .def_property_readonly(
          "runs",
          [](const ReportFile& self) {
            std::vector<const ReportRun*> runs;
            for (const ReportRun& run : self.runs) runs.push_back(&run);
            return runs;
          },
          internal);
  module.def(
      "read_report",
      [](const std::string& file) { return std::make_shared<ReportFile>(plan::read_report(file)); }, "file"_a,
      Releasing());
  module.def(
      "require_compared_run",
      [](const std::string& file) { plan::compared_run_from_json(read_file(file), file); }, "file"_a);
  module.def(
      "report_page", [](const std::vector<const ReportFile*>& files) { return plan::page_of(files); },
      "files"_a, Releasing());
}

}  // namespace

void bind_reports(py::module_& module) {
  bind_step(module);
  bind_run(module);
  bind_file(module);
}

}  // namespace starpipe::python
