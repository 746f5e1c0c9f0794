// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace starpipe::python {

/// Reports of `starpipe train`: their runs, what `explain` says of them, and the page.
void bind_reports(pybind11::module_& module);

}  // namespace starpipe::python
