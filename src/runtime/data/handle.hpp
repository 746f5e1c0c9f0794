// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <starpu.h>

namespace starpipe::runtime {

/// A registered StarPU data handle, unregistered at the end of its own lifetime.
class Handle {
 public:
  Handle() = default;
  /// Takes over a registered handle. `keep_value`: at the end StarPU copies the value back to the host memory
  /// that the handle was registered with.
  Handle(starpu_data_handle_t handle, bool keep_value) : handle_(handle), keep_value_(keep_value) {}
  ~Handle();
  Handle(Handle&& other) noexcept : handle_(other.handle_), keep_value_(other.keep_value_) {
    other.handle_ = nullptr;
  }
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(keep_value_, other.keep_value_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  [[nodiscard]] starpu_data_handle_t get() const { return handle_; }

 private:
  starpu_data_handle_t handle_ = nullptr;
  bool keep_value_ = false;
};

}  // namespace starpipe::runtime
