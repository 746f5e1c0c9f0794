// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include <pybind11/numpy.h>

namespace starpipe::python {

/// Returns a read-only NumPy array over `count` values, each `stride` bytes after the one before. It copies
/// nothing and keeps `owner`, the Python object that has the memory, alive.
template <class Value>
pybind11::array view(const Value* first, std::size_t count, std::size_t stride, pybind11::handle owner) {
  pybind11::array_t<Value> array({static_cast<pybind11::ssize_t>(count)},
                                 {static_cast<pybind11::ssize_t>(stride)}, first, owner);
  array.attr("setflags")(pybind11::arg("write") = false);
  return array;
}
template <class Value>
pybind11::array view(std::span<const Value> values, pybind11::handle owner) {
  return view(values.data(), values.size(), sizeof(Value), owner);
}

/// Returns the same over one member of each element.
template <class Class, class Value>
pybind11::array view(std::span<const Class> elements, Value Class::*member, pybind11::handle owner) {
  const Value* const first = elements.empty() ? nullptr : &(elements.front().*member);
  return view(first, elements.size(), sizeof(Class), owner);
}

}  // namespace starpipe::python
