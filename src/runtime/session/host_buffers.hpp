// SPDX-License-Identifier: Apache-2.0
// The memory of StarPU's data in a run on cores.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace starpipe::runtime {

/// Returns `bytes` of memory, a kept buffer of this size if there is one; null if the system has none even
/// when all kept buffers are freed. Thread-safe.
void* take_host_buffer(std::size_t bytes) noexcept;

/// Keeps a buffer for the next take_host_buffer() of the same size. An allocator would return a large buffer
/// to the system, and the first write to each page of the next one would be a page fault. So at most as many
/// buffers of a size are kept as have been in use at once. Small buffers are freed. Thread-safe.
void give_back_host_buffer(void* buffer, std::size_t bytes) noexcept;

/// Frees the buffers that are kept when it ends.
class KeptHostBuffers {
 public:
  KeptHostBuffers() = default;
  ~KeptHostBuffers();
  KeptHostBuffers(const KeptHostBuffers&) = delete;
  KeptHostBuffers& operator=(const KeptHostBuffers&) = delete;
};

/// The host's memory behind a datum. Moving the object does not change the address of the memory.
struct HostMemory {
  std::shared_ptr<void> owner = {};
  std::span<float> values = {};
};

/// Returns `size` zeros, for data that last. A large memory takes no pages before it is written, and is in
/// huge pages where the system has them. Throws std::bad_alloc. Thread-safe.
HostMemory zero_memory(std::size_t size);

/// Reserves addresses for `size` numbers where nothing computes. They take no pages until something writes
/// them, and their sum may be larger than the host's memory. Throws std::bad_alloc. Thread-safe.
HostMemory unused_memory(std::size_t size);

}  // namespace starpipe::runtime
