// SPDX-License-Identifier: Apache-2.0
// Loops over arrays in the widest vectors of the processor that runs them.
#pragma once

#include <cstddef>

// GCC compiles a function once for each of these levels of x86-64: SSE2, AVX2 and AVX-512. The loader takes
// the highest that the processor has. Other compilers and processors get the loops as they are, as do builds
// with sanitizers, which cannot run before the loader has finished.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define STARPIPE_FULL_WIDTH \
  [[gnu::target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4"), gnu::flatten]]
#else
#define STARPIPE_FULL_WIDTH
#endif

namespace starpipe::model {

/// Runs loop(), compiled for the vectors of this processor; functions that the loop calls are compiled with
/// it. All levels give the same bits: the compiler neither reorders sums nor contracts a product and a sum
/// into one operation (-ffp-contract=off in starpipe_exact_loops), and no result depends on addresses.
template <class Loop>
STARPIPE_FULL_WIDTH void at_full_width(const Loop& loop) noexcept {
  loop();
}

}  // namespace starpipe::model
