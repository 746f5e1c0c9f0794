// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace starpipe::python {

/// Schedules and runs as text, SVG, JSON, CSV, traces and pages, and files read and written.
void bind_forms(pybind11::module_& module);

}  // namespace starpipe::python
