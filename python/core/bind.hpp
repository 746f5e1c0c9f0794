// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace starpipe::python {

/// Schedules and runs as text, SVG, JSON, CSV, traces and pages, and files read and written.
void bind_forms(pybind11::module_& module);

/// Reports of `starpipe train`: their runs, what `explain` says of them, and the page.
void bind_reports(pybind11::module_& module);

/// Stage graphs, schedules, `check`, and the named schedules.
void bind_schedules(pybind11::module_& module);

/// `search`, `partition` and `periodic`.
void bind_searches(pybind11::module_& module);

/// `simulate` and its timeline.
void bind_timelines(pybind11::module_& module);

}  // namespace starpipe::python
