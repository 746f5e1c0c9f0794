// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace starpipe::python {

/// `simulate` and its timeline.
void bind_timelines(pybind11::module_& module);

}  // namespace starpipe::python
