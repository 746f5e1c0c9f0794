// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/host_memory.hpp"

#include <algorithm>
#include <new>

#include <sys/mman.h>

namespace starpipe::runtime {

HostMemory HostMemory::unused(std::size_t size) {
  const std::size_t bytes = std::max<std::size_t>(1, size) * sizeof(float);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  HostMemory result;
  result.mapped_ = {static_cast<float*>(memory), [bytes](float* mapped) { munmap(mapped, bytes); }};
  result.all_ = {result.mapped_.get(), size};
  return result;
}

}  // namespace starpipe::runtime
