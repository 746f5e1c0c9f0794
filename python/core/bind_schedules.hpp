// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace starpipe::python {

/// Stage graphs, schedules, `check`, and the named schedules.
void bind_schedules(pybind11::module_& module);

}  // namespace starpipe::python
