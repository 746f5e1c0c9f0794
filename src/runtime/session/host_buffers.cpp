// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/host_buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>

namespace starpipe::runtime {
namespace {

// The allocator keeps smaller ones itself.
constexpr std::size_t smallest_kept = std::size_t{64} << 10U;

constexpr std::size_t cache_line = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20U;

// In huge pages, where the buffer is large enough and the system has them. StarPU may give the buffer to
// free(), after the session has ended.
void* allocate(std::size_t bytes) noexcept {
  void* buffer = nullptr;
  const bool is_huge = bytes >= huge_page;
  if (posix_memalign(&buffer, is_huge ? huge_page : cache_line, bytes) != 0) return nullptr;
  if (is_huge) madvise(buffer, bytes - bytes % huge_page, MADV_HUGEPAGE);
  return buffer;
}

/// StarPU's functions have no argument for us, so a process has one object of this class.
struct Kept {
  std::mutex mutex;
  std::map<std::size_t, std::vector<void*>> buffers;  ///< by size; the last one was used last
};

Kept& kept() {
  static Kept all;
  return all;
}

}  // namespace

void* take_host_buffer(std::size_t bytes) noexcept {
  if (bytes < smallest_kept) return std::malloc(std::max<std::size_t>(1, bytes));
  {
    const std::scoped_lock lock(kept().mutex);
    const auto same = kept().buffers.find(bytes);
    if (same != kept().buffers.end() && !same->second.empty()) {
      void* const buffer = same->second.back();
      same->second.pop_back();
      return buffer;
    }
  }
  return allocate(bytes);
}

void give_back_host_buffer(void* buffer, std::size_t bytes) noexcept {
  if (bytes < smallest_kept) return std::free(buffer);
  const std::scoped_lock lock(kept().mutex);
  kept().buffers[bytes].push_back(buffer);
}

KeptHostBuffers::~KeptHostBuffers() {
  const std::scoped_lock lock(kept().mutex);
  for (const auto& [size, buffers] : std::exchange(kept().buffers, {})) {
    for (void* const buffer : buffers) std::free(buffer);
  }
}

}  // namespace starpipe::runtime
