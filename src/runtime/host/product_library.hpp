// SPDX-License-Identifier: Apache-2.0
// The library of the matrix products in this process, oneDNN or OpenBLAS: its kernels, threads and memory. A
// build has one of the implementations product_library_onednn.cpp and product_library_cblas.cpp (option
// STARPIPE_PRODUCTS of CMake).
#pragma once

#include <string>
#include <string_view>

namespace starpipe::runtime {

/// Returns the library's name and version, such as "oneDNN 2.6.3", and what it says of its build.
std::string product_library();

/// Returns the library's name of the kernels that it computes with, such as "Haswell" or "AVX2".
std::string product_kernels();

/// Returns the same for people, with the reason if it is not the library's own choice.
std::string product_kernels_text();

/// Lets OpenBLAS choose kernels for AVX-512 or AVX2 if the processor can run them and OpenBLAS has chosen
/// older ones: it knows processors by their model, and takes the kernels of 2004 for a model that is newer
/// than itself. Does nothing if the user has set OPENBLAS_CORETYPE, or if OpenBLAS has kernels for one
/// processor only. Sets this variable for a moment, so call it while no other thread uses OpenBLAS or the
/// environment. oneDNN goes by the processor's features itself.
void choose_product_kernels();

/// Lets products use at most the instructions of a word of `instruction_words` (config.hpp), in this process,
/// from now on. Throws InputError, with the key runtime.instructions, if the processor does not have them, if
/// the environment says something else, or if the process has computed, or been told to, with others before;
/// with OpenBLAS for each word but `native`. Call it before the first network is built. Thread-safe.
void set_product_instructions(std::string_view instructions);

/// Returns one line of advice if the library computes with older kernels than the processor can run, for
/// another reason than the user's choice (OPENBLAS_CORETYPE); otherwise "".
std::string product_advice();

/// False if the library, when it is loaded, would wait indefinitely for memory: OpenBLAS that is built with
/// OpenMP takes its first two buffers there. May be called before the constructors of shared libraries.
bool has_room_to_load_products() noexcept;

/// OpenMP's library, which oneDNN and some builds of OpenBLAS load, binds the main thread to the first of its
/// places where OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY is set. All threads of a run would share that
/// core. Notes the cores of this process. Call it before the constructors of shared libraries.
void note_cores() noexcept;
/// Gives the calling thread the cores that `note_cores` has noted, if the library is built with OpenMP.
void restore_cores() noexcept;

/// During this object's lifetime each call of OpenBLAS in this thread uses one thread; where OpenBLAS is not
/// built with OpenMP, in all threads. The destructor restores the previous number. With oneDNN each product
/// sees to that itself. Not thread-safe.
class OneProductThread {
 public:
  OneProductThread();
  // NOLINTNEXTLINE(performance-trivially-destructible): it is not with OpenBLAS
  ~OneProductThread();
  OneProductThread(const OneProductThread&) = delete;
  OneProductThread& operator=(const OneProductThread&) = delete;

 private:
  [[maybe_unused]] int before_;
};

/// Lets OpenBLAS use one thread for each call in the calling thread, from now on. Only an OpenBLAS that is
/// built with OpenMP needs it: OpenMP counts threads for each calling thread. Thread-safe, and quick after
/// a thread's first call.
void use_one_product_thread();

/// Lets OpenBLAS take the buffers that it needs for as many products at a time, and keep them. (OpenBLAS
/// 0.3.21 waits indefinitely for a buffer that it cannot get.) Throws as `require_free_memory` does. Call it
/// while no product is computed. Not thread-safe.
void take_product_buffers(int products);

}  // namespace starpipe::runtime
