// SPDX-License-Identifier: Apache-2.0
// The memory that StarPU allocates for data on SimGrid. SimGrid's own maps one file again and again, page by
// page, which took most of the time where stashes are copied. Nobody reads or writes the data of
// a simulated step, so addresses without pages do. The linker has StarPU call these functions in place of
// SimGrid's (--wrap, src/CMakeLists.txt).
#include <cstddef>
#include <map>
#include <new>
#include <utility>

#include "runtime/session/host_buffers.hpp"

namespace starpipe::runtime {
namespace {

// The ranks are coroutines of one thread, and each has its own.
std::map<const void*, HostMemory>& allocated() {
  static std::map<const void*, HostMemory> memory;
  return memory;
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" void* __wrap_smpi_shared_malloc(std::size_t bytes, const char* /*file*/, int /*line*/) try {
  HostMemory memory = unused_memory((bytes + sizeof(float) - 1) / sizeof(float));
  void* const begin = memory.values.data();
  allocated()[begin] = std::move(memory);
  return begin;
} catch (const std::bad_alloc&) {
  return nullptr;
}

extern "C" void __wrap_smpi_shared_free(void* begin) { allocated().erase(begin); }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

}  // namespace starpipe::runtime
