// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <starpu.h>

#include "runtime/engine/task_graph.hpp"
#include "runtime/host/worker_map.hpp"
#include "starpipe/base/error.hpp"

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
/// exception, too. Otherwise StarPU would wait for its end indefinitely when the datum is unregistered.
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

/// The host's memory behind a datum. A value that moves and does not change its address.
class HostMemory {
 public:
  HostMemory() = default;
  HostMemory(HostMemory&&) = default;
  HostMemory& operator=(HostMemory&&) = default;
  explicit HostMemory(std::vector<float> values) : values_(std::move(values)), all_(values_) {}
  /// Returns memory of `size` numbers that must not be read or written, for SimGrid: addresses without pages
  /// behind them. Throws std::bad_alloc.
  static HostMemory unused(std::size_t size);

  [[nodiscard]] std::span<float> get() { return all_; }
  [[nodiscard]] std::span<const float> get() const { return all_; }

 private:
  std::vector<float> values_;
  std::shared_ptr<float> mapped_;  // with a function that unmaps it
  std::span<float> all_;
};

/// Throws InputError, naming the stage and the datum, when a datum, or the scratch memory of a step, is too
/// large for StarPU (more than 2^32 - 1 words of 4 bytes), or when ranks exchange a datum that is too large
/// for one message (more than 2^31 - 1 bytes). StarPU and MPI would keep only the lower bits of such a size.
/// All ranks get the same answer.
void check_data_sizes(const TaskGraph& graph, const plan::Schedule& schedule, const model::Network& network,
                      const WorkerMap& map);

/// The same for a run that evaluates with the schedule's forward passes and does not train.
void check_evaluation_sizes(const plan::Schedule& schedule, const model::Network& network,
                            const WorkerMap& map);

}  // namespace starpipe::runtime
