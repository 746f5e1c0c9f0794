// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <utility>

#include <starpu.h>

#include "starpipe/base/require.hpp"

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

/// The host's access to a datum, for as long as this lives: no task uses the datum meanwhile. It ends with an
/// exception, too. Otherwise StarPU would wait for its end for ever when the datum is unregistered.
class Acquired {
 public:
  /// Waits for the tasks that use the datum. `name`: for messages.
  Acquired(starpu_data_handle_t handle, starpu_data_access_mode mode, std::string_view name)
      : handle_(handle) {
    require(starpu_data_acquire(handle, mode), "StarPU", mode == STARPU_R ? "reading" : "writing", name);
  }
  ~Acquired() { starpu_data_release(handle_); }
  Acquired(const Acquired&) = delete;
  Acquired& operator=(const Acquired&) = delete;

 private:
  starpu_data_handle_t handle_;
};

}  // namespace starpipe::runtime
