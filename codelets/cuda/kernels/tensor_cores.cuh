// SPDX-License-Identifier: Apache-2.0
// The PTX instructions mma.m16n8k16, ldmatrix and cp.async, of compute capability 8.0 and later, as
// functions. All 32 lanes of a warp must call mma and ldmatrix functions together; copies are each thread's
// own. The tests have another tensor_cores.cuh, which does the same on a CPU.
//
// An 8x8 matrix of bf16 in registers: lane l has elements [row l / 4][columns l % 4 * 2 and l % 4 * 2 + 1] in
// one register, the left one in its lower half.
#pragma once

#include "codelets/cuda/kernels/element.hpp"

namespace starpipe::model::cuda::tensor_cores {

/// A lane's registers of four 8x8 matrices, as ldmatrix loads them.
struct Matrices {
  unsigned of[4];
};

/// A fragment of mma.m16n8k16: a lane's part of A, which is 16x16 in bf16. `of` are the upper left, lower
/// left, upper right and lower right 8x8 matrices.
using FragmentA = Matrices;

/// Accumulator fragment of mma.m16n8k16: a lane's part of C and D, which are 16x8 in fp32. Lane l has, for
/// row l / 4 and column l % 4 * 2: at[0] [row][column], at[1] [row][column + 1], at[2] [row + 8][column] and
/// at[3] [row + 8][column + 1].
struct Accumulator {
  float at[4] = {};
};

/// sum += A * B, with B of 16x8. `b_upper` and `b_lower` are the transposes of B's rows [0, 8) and [8, 16),
/// as 8x8 matrices in registers.
__device__ inline void multiply_add(Accumulator& sum, const FragmentA& a, unsigned b_upper,
                                    unsigned b_lower) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum.at[0]), "+f"(sum.at[1]), "+f"(sum.at[2]), "+f"(sum.at[3])
      : "r"(a.of[0]), "r"(a.of[1]), "r"(a.of[2]), "r"(a.of[3]), "r"(b_upper), "r"(b_lower));
}

__device__ inline unsigned address_in_shared(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

/// ldmatrix: loads four 8x8 matrices from shared memory. `row` of lane l is the address, a multiple of 16
/// bytes, of row l % 8 of matrix l / 8.
__device__ inline Matrices load_matrices(const Bf16* row) {
  Matrices to;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.of[0]), "=r"(to.of[1]), "=r"(to.of[2]), "=r"(to.of[3])
               : "r"(address_in_shared(row))
               : "memory");
  return to;
}

/// Loads matrices as load_matrices() does, and returns the transpose of each.
__device__ inline Matrices load_matrices_transposed(const Bf16* row) {
  Matrices to;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.of[0]), "=r"(to.of[1]), "=r"(to.of[2]), "=r"(to.of[3])
               : "r"(address_in_shared(row))
               : "memory");
  return to;
}

/// Rounds two floats to bf16 and packs them into one register, `low` in its lower half.
__device__ inline unsigned pack(float low, float high) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// Stores the two bf16 that pack() returned, at a multiple of 4 bytes.
__device__ inline void store_pair(Bf16* to, unsigned both) { *reinterpret_cast<unsigned*>(to) = both; }

/// Returns 2^x with a relative error of at most 2^-22. Results below the smallest normal number are 0.
__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// cp.async: begins to copy Bytes (4 or 16) from global to shared memory. Unless `inside`, it writes zeros
/// and does not read `from`. Both addresses are multiples of Bytes. The calling thread sees the bytes after
/// wait_for_copies(), other threads after a barrier that follows it.
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

/// Waits until all copies that this thread has begun are done.
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace starpipe::model::cuda::tensor_cores
