// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/host_buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <sys/mman.h>

namespace starpipe::runtime {
namespace {

// The allocator keeps smaller ones itself.
constexpr std::size_t smallest_kept = std::size_t{64} << 10U;

constexpr std::size_t cache_line = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20U;

void ask_for_huge_pages(void* begin, std::size_t bytes) noexcept {
  madvise(begin, bytes - bytes % huge_page, MADV_HUGEPAGE);
}

// In huge pages, where the buffer is large enough and the system has them. From malloc's memory: after the
// session StarPU gives buffers to free().
void* allocate(std::size_t bytes) noexcept {
  void* buffer = nullptr;
  const bool is_huge = bytes >= huge_page;
  if (posix_memalign(&buffer, is_huge ? huge_page : cache_line, bytes) != 0) return nullptr;
  if (is_huge) ask_for_huge_pages(buffer, bytes);
  return buffer;
}

struct Free {
  void operator()(void* buffer) const noexcept { std::free(buffer); }
};

/// StarPU's functions have no argument for us, so a process has one object of this class.
struct Kept {
  std::mutex mutex;
  std::map<std::size_t, std::vector<std::unique_ptr<void, Free>>>
      buffers;  ///< by size; the last one was used last
};

Kept& kept() {
  static Kept all;
  return all;
}

// Returns zeros in pages of their own.
HostMemory mapped_memory(std::size_t size, int flags) {
  const std::size_t bytes = std::max<std::size_t>(1, size) * sizeof(float);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {{memory, [bytes](void* mapped) { munmap(mapped, bytes); }}, {static_cast<float*>(memory), size}};
}

void free_kept() {
  const std::scoped_lock lock(kept().mutex);
  kept().buffers.clear();
}

}  // namespace

void* take_host_buffer(std::size_t bytes) noexcept {
  if (bytes < smallest_kept) return std::malloc(std::max<std::size_t>(1, bytes));
  {
    const std::scoped_lock lock(kept().mutex);
    const auto same = kept().buffers.find(bytes);
    if (same != kept().buffers.end() && !same->second.empty()) {
      void* const buffer = same->second.back().release();
      same->second.pop_back();
      return buffer;
    }
  }
  if (void* const buffer = allocate(bytes)) return buffer;
  free_kept();  // buffers of other sizes
  return allocate(bytes);
}

void give_back_host_buffer(void* buffer, std::size_t bytes) noexcept {
  if (bytes < smallest_kept) return std::free(buffer);
  const std::scoped_lock lock(kept().mutex);
  kept().buffers[bytes].emplace_back(buffer);
}

// In small pages an optimizer, which reads its state before it first writes it, would have two page faults
// for each page, the second of which interrupts all cores of the process.
HostMemory zero_memory(std::size_t size) {
  const std::size_t bytes = std::max<std::size_t>(1, size) * sizeof(float);
  if (bytes < huge_page) {
    const std::shared_ptr<float> memory(static_cast<float*>(std::calloc(bytes, 1)), std::free);
    if (!memory) throw std::bad_alloc();
    return {memory, {memory.get(), size}};
  }
  const HostMemory memory = mapped_memory(size + huge_page / sizeof(float), 0);
  void* begin = memory.values.data();
  std::size_t room = memory.values.size_bytes();
  std::align(huge_page, bytes, begin, room);
  ask_for_huge_pages(begin, bytes);
  return {memory.owner, {static_cast<float*>(begin), size}};
}

HostMemory unused_memory(std::size_t size) { return mapped_memory(size, MAP_NORESERVE); }

KeptHostBuffers::~KeptHostBuffers() { free_kept(); }

}  // namespace starpipe::runtime
