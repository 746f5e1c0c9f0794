// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/host_buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <sys/mman.h>

namespace starpipe::runtime {
namespace {

// The allocator keeps smaller ones itself.
constexpr std::size_t smallest_kept = std::size_t{64} << 10U;

constexpr std::size_t cache_line = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20U;

// In huge pages, where the buffer is large enough and the system has them. From malloc's memory: after the
// session StarPU gives buffers to free().
void* allocate(std::size_t bytes) noexcept {
  void* buffer = nullptr;
  const bool is_huge = bytes >= huge_page;
  if (posix_memalign(&buffer, is_huge ? huge_page : cache_line, bytes) != 0) return nullptr;
  if (is_huge) madvise(buffer, bytes - bytes % huge_page, MADV_HUGEPAGE);
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

KeptHostBuffers::~KeptHostBuffers() { free_kept(); }

}  // namespace starpipe::runtime
