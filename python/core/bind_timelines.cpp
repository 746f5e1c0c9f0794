// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "plan/simulate/memory_over_time.hpp"
#include "python/core/arrays.hpp"
#include "python/core/bind.hpp"
#include "python/core/dataclasses.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/timeline.hpp"

namespace starpipe::python {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;
using Releasing = py::call_guard<py::gil_scoped_release>;

/// The memory that one worker holds.
struct MemoryCurve {
  std::vector<plan::MemoryStep> steps;
};

const plan::Timeline& timeline_of(py::handle self) { return self.cast<const plan::Timeline&>(); }

template <class Class, class Owner, class Member>
auto member_view(std::vector<Class> Owner::*elements, Member Class::*member) {
  return [=](py::handle self) {
    return view(std::span<const Class>(self.cast<const Owner&>().*elements), member, self);
  };
}
template <class Value>
auto vector_view(std::vector<Value> plan::Timeline::*values) {
  return [=](py::handle self) { return view(std::span<const Value>(timeline_of(self).*values), self); };
}

void bind_timeline(py::module_& module) {
  using plan::Timeline;
  py::class_<Timeline>(module, "Timeline")
      .def_property_readonly("start", member_view(&Timeline::spans, &plan::Span::start))
      .def_property_readonly("end", member_view(&Timeline::spans, &plan::Span::end))
      .def_property_readonly("ready", vector_view(&Timeline::ready))
      .def(
          "order_of",
          [](py::handle self, int worker) {
            return view(std::span<const plan::JobId>(timeline_of(self).order.at(index(worker))), self);
          },
          "worker"_a)
      .def_readonly("makespan", &Timeline::makespan)
      .def_readonly("gradients_summed", &Timeline::gradients_summed)
      .def_readonly("bubble_fraction", &Timeline::bubble_fraction)
      .def_readonly("recomputed_fraction", &Timeline::recomputed_fraction)
      .def_readonly("device_span", &Timeline::device_span)
      .def_readonly("device_bubble_fraction", &Timeline::device_bubble_fraction)
      .def_property_readonly("busy", vector_view(&Timeline::busy))
      .def_property_readonly("peak_stashes", vector_view(&Timeline::peak_stashes))
      .def_property_readonly("peak_stash_bytes", vector_view(&Timeline::peak_stash_bytes))
      .def_readonly("received", &Timeline::received);
}

void bind_memory(py::module_& module) {
  using plan::MemoryStep;
  py::class_<MemoryCurve>(module, "MemoryCurve")
      .def_property_readonly("time", member_view(&MemoryCurve::steps, &MemoryStep::time))
      .def_property_readonly("stashes", member_view(&MemoryCurve::steps, &MemoryStep::stashes))
      .def_property_readonly("bytes", member_view(&MemoryCurve::steps, &MemoryStep::bytes));
  module.def(
      "memory_over_time",
      [](const plan::Schedule& schedule, const plan::Costs& costs, const plan::Timeline& timeline) {
        std::vector<MemoryCurve> curves;
        for (auto& steps : plan::memory_over_time(schedule, costs, timeline))
          curves.push_back({std::move(steps)});
        return curves;
      },
      "schedule"_a, "costs"_a, "timeline"_a, Releasing());
}

}  // namespace

void bind_timelines(py::module_& module) {
  bind_timeline(module);
  bind_memory(module);
  module.def(
      "simulate",
      [](const plan::Schedule& schedule, const plan::Costs& costs) {
        return plan::simulate(schedule, costs);
      },
      "schedule"_a, "costs"_a, Releasing());
}

}  // namespace starpipe::python
