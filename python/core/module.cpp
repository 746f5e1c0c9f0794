// SPDX-License-Identifier: Apache-2.0
// The module starpipe._core gives `plan` to the Python package. Users see the names and docstrings of the
// package, not of this module.

#include <pybind11/pybind11.h>

#include "python/core/bind.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/version.hpp"

PYBIND11_MODULE(_core, module) {
  namespace python = starpipe::python;
  module.doc() = "starpipe's scheduling library, for the package starpipe.";
  module.attr("version") = starpipe::version;
  auto error = pybind11::register_exception<starpipe::InputError>(module, "InputError", PyExc_ValueError);
  error.attr("__module__") = "starpipe";
  error.attr("__doc__") =
      "An input that cannot work. The message is one line that names the file, key or value, as the command "
      "has it.";
  python::bind_schedules(module);
  python::bind_timelines(module);
  python::bind_forms(module);
  python::bind_reports(module);
  python::bind_searches(module);
}
