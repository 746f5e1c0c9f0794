// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/memory_guard.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <starpu.h>

#include "base/numbers.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/session/host_buffers.hpp"

namespace starpipe::runtime {
namespace {

thread_local const char* running_task = nullptr;

std::atomic<const Mpi*> guarded = nullptr;
std::new_handler handler_before = nullptr;
// Given back before the line is made, which needs memory. Only the first thread without memory gives it back.
std::unique_ptr<std::byte[]> spare;
std::atomic_flag is_out_of_memory;
constexpr std::size_t spare_bytes = std::size_t{1} << 20U;

void on_no_memory() {
  const Mpi* const mpi = guarded;
  if (running_task == nullptr || mpi == nullptr) {
    if (handler_before != nullptr) return handler_before();
    throw std::bad_alloc();
  }
  const char* const task = std::exchange(running_task, nullptr);
  if (!is_out_of_memory.test_and_set()) spare.reset();
  mpi->abort(fmt::format("out of memory in {}{}", task, memory_limit_text()));
}

// StarPU would put the task back, and wait indefinitely.
int allocate_data(unsigned /*node*/, void** memory, std::size_t size, int /*flags*/) {
  *memory = take_host_buffer(size);
  if (*memory != nullptr) return 0;
  const Mpi* const mpi = guarded;
  if (mpi != nullptr)
    mpi->abort(fmt::format("out of memory: {} for data of a task{}", bytes_text(size), memory_limit_text()));
  return -ENOMEM;
}

int release_data(unsigned /*node*/, void* memory, std::size_t size, int /*flags*/) {
  give_back_host_buffer(memory, size);
  return 0;
}

}  // namespace

MemoryGuard::MemoryGuard(const Mpi& mpi, bool gives_data) : gives_data_(gives_data) {
  spare = std::make_unique<std::byte[]>(spare_bytes);
  is_out_of_memory.clear();
  guarded = &mpi;
  handler_before = std::set_new_handler(on_no_memory);
  if (gives_data_) starpu_malloc_set_hooks(allocate_data, release_data);
}

MemoryGuard::~MemoryGuard() {
  if (gives_data_) starpu_malloc_set_hooks(nullptr, nullptr);
  std::set_new_handler(handler_before);
  guarded = nullptr;
  spare.reset();
}

RunningTask::RunningTask(const char* name) { running_task = name; }
RunningTask::~RunningTask() { running_task = nullptr; }

}  // namespace starpipe::runtime
