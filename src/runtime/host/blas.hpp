// SPDX-License-Identifier: Apache-2.0
// OpenBLAS in this process: the kernels that it computes with, and its threads.
#pragma once

#include <string>

namespace starpipe::runtime {

/// Returns OpenBLAS's name of the kernels that it computes with, such as "Haswell".
std::string blas_kernels();

/// Returns the same for people, with the reason if it is not OpenBLAS's own choice.
std::string blas_kernels_text();

/// Lets OpenBLAS choose kernels for AVX-512 or AVX2 if the processor can run them and OpenBLAS has chosen
/// older ones: it knows processors by their model, and takes the kernels of 2004 for a model that is newer
/// than itself. Does nothing if the user has set OPENBLAS_CORETYPE, or if OpenBLAS has kernels for one
/// processor only. Sets this variable for a moment, so call it while no other thread uses OpenBLAS or the
/// environment.
void choose_blas_kernels();

/// Returns one line of advice if OpenBLAS computes with older kernels than the processor can run, for another
/// reason than OPENBLAS_CORETYPE; otherwise "".
std::string blas_advice();

/// False if OpenBLAS, when it is loaded, would wait indefinitely for memory: built with OpenMP it takes its
/// first two buffers there. May be called before the constructors of shared libraries.
bool has_room_to_load_blas() noexcept;

/// OpenMP's library, which some builds of OpenBLAS load, binds the main thread to the first of its places
/// where OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY is set. All threads of a run would share that core.
/// Notes the cores of this process. Call it before the constructors of shared libraries.
void note_cores() noexcept;
/// Gives the calling thread the cores that `note_cores` has noted, if OpenBLAS is built with OpenMP.
void restore_cores() noexcept;

/// During this object's lifetime each call of OpenBLAS in this thread uses one thread; where OpenBLAS is not
/// built with OpenMP, in all threads. The destructor restores the previous number. Not thread-safe.
class OneBlasThread {
 public:
  OneBlasThread();
  ~OneBlasThread();
  OneBlasThread(const OneBlasThread&) = delete;
  OneBlasThread& operator=(const OneBlasThread&) = delete;

 private:
  int before_;
};

/// Lets OpenBLAS use one thread for each call in the calling thread, from now on. Only an OpenBLAS that is
/// built with OpenMP needs it: OpenMP counts threads for each calling thread. Thread-safe, and quick after
/// a thread's first call.
void use_one_blas_thread();

/// Lets OpenBLAS take the buffers that it needs for as many products at a time, and keep them. (OpenBLAS
/// 0.3.21 waits indefinitely for a buffer that it cannot get.) Throws as `require_free_memory` does. Call it
/// while no product is computed. Not thread-safe.
void take_product_buffers(int products);

}  // namespace starpipe::runtime
