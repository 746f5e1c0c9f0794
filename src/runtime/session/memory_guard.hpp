// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// During this object's lifetime a run that gets no memory ends with a line that says so. Without it StarPU
/// would wait indefinitely for the memory of a datum, and a task that throws std::bad_alloc would end the
/// process with a signal. There is one at a time, as there is one session.
class MemoryGuard {
 public:
  /// `gives_data`: allocates the memory of StarPU's data. False with GPUs: CUDA's driver allocates it.
  MemoryGuard(const Mpi& mpi, bool gives_data);
  ~MemoryGuard();
  MemoryGuard(const MemoryGuard&) = delete;
  MemoryGuard& operator=(const MemoryGuard&) = delete;

 private:
  bool gives_data_;
};

/// During this object's lifetime the calling thread runs a task, which the line names.
class RunningTask {
 public:
  explicit RunningTask(const char* name);
  ~RunningTask();
  RunningTask(const RunningTask&) = delete;
  RunningTask& operator=(const RunningTask&) = delete;
};

}  // namespace starpipe::runtime
