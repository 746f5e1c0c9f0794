// SPDX-License-Identifier: Apache-2.0
// What a warp asks tensor cores and shared memory for: the instructions mma.m16n8k16, ldmatrix and cp.async
// of PTX, of compute capability 8.0 and later. All lanes of a warp call together what is not a copy. The
// tests have another tensor_cores.cuh, which does the same on a CPU.
#pragma once

#include "codelets/cuda/kernels/element.hpp"

namespace starpipe::model::cuda::tensor_cores {

/// Four 8x8 matrices. Of each, lane l has the elements [l / 4][l % 4 * 2] and, in the upper half, the one to
/// its right. As a left factor of 16x16 they are its upper left, lower left, upper right and lower right
/// ones.
struct Matrices {
  unsigned of[4];
};

/// 16x8. Lane l has [l / 4][l % 4 * 2], the one to its right, and the same eight rows below.
struct Product {
  float at[4] = {};
};

/// sum += left * right. `upper`, `lower`: of right's halves of eight rows each, the transposes.
__device__ inline void multiply_add(Product& sum, const Matrices& left, unsigned upper, unsigned lower) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum.at[0]), "+f"(sum.at[1]), "+f"(sum.at[2]), "+f"(sum.at[3])
      : "r"(left.of[0]), "r"(left.of[1]), "r"(left.of[2]), "r"(left.of[3]), "r"(upper), "r"(lower));
}

__device__ inline unsigned address_in_shared(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

/// `row`: lane l's is row l % 8 of matrix l / 8, in shared memory and at a multiple of 16 bytes.
__device__ inline Matrices load_matrices(const Bf16* row) {
  Matrices to;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.of[0]), "=r"(to.of[1]), "=r"(to.of[2]), "=r"(to.of[3])
               : "r"(address_in_shared(row))
               : "memory");
  return to;
}

/// The transposes of what load_matrices() loads.
__device__ inline Matrices load_matrices_transposed(const Bf16* row) {
  Matrices to;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.of[0]), "=r"(to.of[1]), "=r"(to.of[2]), "=r"(to.of[3])
               : "r"(address_in_shared(row))
               : "memory");
  return to;
}

/// Both rounded; `low` in the lower half.
__device__ inline unsigned pack(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// What pack() gave, at a multiple of 4 bytes.
__device__ inline void store_pair(Bf16* to, unsigned both) { *reinterpret_cast<unsigned*>(to) = both; }

/// 2^x within 2^-22 of itself; 0 where that is less than the least normal number.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Begins to copy Bytes (4 or 16) to shared memory, or zeros if not `inside`: then `from` is not read. Both
/// are multiples of Bytes. The bytes are there for this thread after wait_for_copies(), for others after a
/// barrier that follows.
template <int Bytes>
__device__ void copy_async(void* to, const void* from, bool inside) {
  const int size = inside ? Bytes : 0;
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_in_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(size)
                 : "memory");
  } else {
    static_assert(Bytes == 4);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address_in_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(size)
                 : "memory");
  }
}

/// For all that this thread has begun.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace starpipe::model::cuda::tensor_cores
