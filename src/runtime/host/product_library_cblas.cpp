// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include <cblas.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include "base/environment.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/product_library.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/runtime/config/config.hpp"

// Functions of an OpenBLAS with kernels for many processors, which it calls when it is loaded. Its headers do
// not have them, and an OpenBLAS for one processor has none.
extern "C" {
void gotoblas_dynamic_init() __attribute__((weak));
void gotoblas_dynamic_quit() __attribute__((weak));
// These are in every OpenBLAS, but not in other libraries.
void* blas_memory_alloc(int position) __attribute__((weak));
void blas_memory_free(void* buffer) __attribute__((weak));
}

namespace starpipe::runtime {
namespace {

constexpr const char* by_user = "OPENBLAS_CORETYPE";
constexpr std::size_t max_buffer_bytes = std::size_t{128} << 20U;  // on x86; less elsewhere

// Kernels without AVX2. Names that are not here are of newer processors, or of AMD's that have no AVX2.
constexpr std::array<std::string_view, 14> older_kernels = {
    "Prescott", "Core2",   "Penryn",       "Dunnington", "Nehalem", "Atom",   "Nano",
    "Athlon",   "Opteron", "Opteron_SSE3", "Barcelona",  "Bobcat",  "Banias", "Sandybridge"};

bool older_kernels_run() {
  return std::ranges::find(older_kernels, product_kernels()) != older_kernels.end();
}

// Returns the kernels for the features of this processor; null without AVX2.
const char* kernels_of_processor() {
#ifdef __x86_64__
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
                      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
                      __builtin_cpu_supports("avx512vl") != 0;
  if (avx2) return avx512 ? "SkylakeX" : "Haswell";
#endif
  return nullptr;
}

std::string replaced_kernels;  // OpenBLAS's own choice, if it was another

}  // namespace

std::string product_library() { return openblas_get_config(); }

std::string product_kernels() { return openblas_get_corename(); }

std::string product_kernels_text() {
  if (environment(by_user)) return fmt::format("{} ({} is set)", product_kernels(), by_user);
  if (replaced_kernels.empty()) return product_kernels();
  return fmt::format("{}, by the processor's features ({} by OpenBLAS itself)", product_kernels(),
                     replaced_kernels);
}

void choose_product_kernels() {
  const char* const kernels = kernels_of_processor();
  if (kernels == nullptr || environment(by_user) || !older_kernels_run()) return;
  if (gotoblas_dynamic_init == nullptr || gotoblas_dynamic_quit == nullptr) return;
  replaced_kernels = product_kernels();
  const ScopedVariable chosen(by_user, kernels);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
}

void set_product_instructions(std::string_view instructions) {
  if (instructions == native_instructions) return;
  throw InputError(fmt::format(
      "runtime.instructions: {}: matrix products of this build run in OpenBLAS, which has no limit of "
      "instructions; OPENBLAS_CORETYPE names its kernels",
      instructions));
}

std::string product_advice() {
  if (kernels_of_processor() == nullptr || environment(by_user) || !older_kernels_run()) return {};
  return fmt::format(
      "OpenBLAS computes with its kernels for {}, which do not use AVX2 of this processor: an OpenBLAS that "
      "is built with DYNAMIC_ARCH=1 is several times as fast",
      product_kernels());
}

bool has_room_to_load_products() noexcept {
  if (openblas_get_parallel() != OPENBLAS_OPENMP) return true;
  constexpr std::size_t bytes = 2 * max_buffer_bytes + (std::size_t{32} << 20U);  // with other libraries'
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, bytes);
  return true;
}

namespace {

cpu_set_t noted_cores{};
bool cores_are_noted = false;

}  // namespace

void note_cores() noexcept { cores_are_noted = sched_getaffinity(0, sizeof noted_cores, &noted_cores) == 0; }

void restore_cores() noexcept {
  if (cores_are_noted && openblas_get_parallel() == OPENBLAS_OPENMP)
    sched_setaffinity(0, sizeof noted_cores, &noted_cores);
}

OneProductThread::OneProductThread() : before_(openblas_get_num_threads()) { openblas_set_num_threads(1); }

OneProductThread::~OneProductThread() { openblas_set_num_threads(before_); }

void use_one_product_thread() {
  [[maybe_unused]] thread_local const bool done = [] {
    if (openblas_get_parallel() != OPENBLAS_OPENMP) return true;
    // OpenBLAS's own function changes the number for the whole process, too, without a lock.
    void* const function = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): dlsym's way
    if (function != nullptr) reinterpret_cast<void (*)(int)>(function)(1);
    return true;
  }();
}

// OpenBLAS takes the first buffer that is not in use, and a new one if there is none.
void take_product_buffers(int products) {
  static int taken = 0;
  if (blas_memory_alloc == nullptr || blas_memory_free == nullptr || products <= taken) return;
  std::vector<void*> buffers;
  for (int i = 0; i < products; ++i) {
    if (i >= taken) require_free_memory(max_buffer_bytes, "OpenBLAS, which needs as much for each worker");
    buffers.push_back(blas_memory_alloc(0));
  }
  for (void* const buffer : buffers) blas_memory_free(buffer);
  taken = products;
}

}  // namespace starpipe::runtime
