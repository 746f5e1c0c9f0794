// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/gpu_buffers.hpp"

#include <cerrno>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#ifdef STARPIPE_WITH_CUDA
#include <starpu_cublas_v2.h>
#endif

namespace starpipe::runtime {

#ifdef STARPIPE_WITH_CUDA
CublasHandles::CublasHandles() { starpu_cublas_init(); }
CublasHandles::~CublasHandles() { starpu_cublas_shutdown(); }
#else
CublasHandles::CublasHandles() = default;
CublasHandles::~CublasHandles() = default;
#endif

namespace {

/// The buffers of a node, by size.
using Buffers = std::multimap<std::size_t, std::uintptr_t>;

/// StarPU's functions have no argument for us, so a process has one object of this class.
class KeptBuffers {
 public:
  // Returns true if it was closed.
  bool open() {
    const std::scoped_lock lock(mutex_);
    return !std::exchange(is_open_, true);
  }

  // Returns the kept buffers.
  std::map<unsigned, Buffers> close() {
    const std::scoped_lock lock(mutex_);
    is_open_ = false;
    return std::exchange(kept_, {});
  }

  bool keep(unsigned node, std::size_t size, std::uintptr_t buffer) {
    const std::scoped_lock lock(mutex_);
    if (is_open_) kept_[node].emplace(size, buffer);
    return is_open_;
  }

  // Takes a buffer of exactly this size; nullopt if there is none.
  std::optional<std::uintptr_t> take(unsigned node, std::size_t size) {
    const std::scoped_lock lock(mutex_);
    Buffers& buffers = kept_[node];
    const auto found = buffers.find(size);
    if (found == buffers.end()) return std::nullopt;
    return buffers.extract(found).mapped();
  }

  // Takes the smallest buffer of at least `size` bytes, or else the largest buffer; nullopt if there is none.
  std::optional<std::pair<std::size_t, std::uintptr_t>> take_for(unsigned node, std::size_t size) {
    const std::scoped_lock lock(mutex_);
    Buffers& buffers = kept_[node];
    if (buffers.empty()) return std::nullopt;
    auto found = buffers.lower_bound(size);
    if (found == buffers.end()) --found;
    const std::pair<std::size_t, std::uintptr_t> taken = *found;
    buffers.erase(found);
    return taken;
  }

 private:
  std::mutex mutex_;
  bool is_open_ = false;
  std::map<unsigned, Buffers> kept_;  // by memory node
};

KeptBuffers& kept_buffers() {
  static KeptBuffers kept;
  return kept;
}

bool is_main_memory(unsigned node) { return starpu_node_get_kind(node) == STARPU_CPU_RAM; }

starpu_ssize_t allocate(void* interface, unsigned node) {
  const auto allocate_new = starpu_interface_vector_ops.allocate_data_on_node;
  if (is_main_memory(node)) return allocate_new(interface, node);
  auto& vector = *static_cast<starpu_vector_interface*>(interface);
  if (const auto kept = kept_buffers().take(node, vector.allocsize)) {
    vector.ptr = vector.dev_handle = *kept;
    vector.offset = 0;
    return static_cast<starpu_ssize_t>(vector.allocsize);
  }
  starpu_ssize_t allocated = allocate_new(interface, node);
  while (allocated == -ENOMEM) {
    const auto freed = kept_buffers().take_for(node, vector.allocsize);
    if (!freed) break;
    starpu_free_on_node(node, freed->second, freed->first);
    allocated = allocate_new(interface, node);
  }
  return allocated;
}

void free_or_keep(void* interface, unsigned node) {
  auto& vector = *static_cast<starpu_vector_interface*>(interface);
  if (is_main_memory(node) || !kept_buffers().keep(node, vector.allocsize, vector.dev_handle)) {
    starpu_interface_vector_ops.free_data_on_node(interface, node);
    return;
  }
  vector.ptr = vector.dev_handle = 0;
}

/// StarPU's vectors, but for their buffers.
starpu_data_interface_ops& operations() {
  static starpu_data_interface_ops changed = [] {
    starpu_data_interface_ops ops = starpu_interface_vector_ops;
    ops.allocate_data_on_node = allocate;
    ops.free_data_on_node = free_or_keep;
    return ops;
  }();
  return changed;
}

}  // namespace

GpuBuffers::GpuBuffers() {
  if (!kept_buffers().open()) throw std::logic_error("a process has one GpuBuffers at a time");
}

GpuBuffers::~GpuBuffers() {
  for (const auto& [node, buffers] : kept_buffers().close()) {
    for (const auto& [size, buffer] : buffers) starpu_free_on_node(node, buffer, size);
  }
}

starpu_data_handle_t GpuBuffers::register_words(int home, std::uintptr_t memory, std::uint32_t words,
                                                std::uint32_t buffer) {
  starpu_vector_interface vector{};
  vector.id = STARPU_VECTOR_INTERFACE_ID;
  vector.ptr = vector.dev_handle = memory;
  vector.nx = words;
  vector.elemsize = sizeof(float);
  vector.allocsize = std::size_t{buffer} * sizeof(float);
  starpu_data_handle_t handle = nullptr;
  starpu_data_register(&handle, home, &vector, &operations());
  return handle;
}

}  // namespace starpipe::runtime
