// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace starpipe::python {

/// `search`, `partition` and `periodic`.
void bind_searches(pybind11::module_& module);

}  // namespace starpipe::python
