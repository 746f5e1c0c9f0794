// SPDX-License-Identifier: Apache-2.0
// The part of CUDA that our kernels use, on a CPU, so that machines without a GPU test them too. Memory of
// the GPU is main memory, and a stream runs its work at once. The threads of a block are fibers
// (emulator.cpp) that take turns from one barrier to the next, in an order that differs each time: so a
// missing barrier shows as a wrong result.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include <math.h>  // NOLINT(modernize-deprecated-headers): names outside of std

// The names are CUDA's.
// NOLINTBEGIN(readability-identifier-naming,bugprone-reserved-identifier)

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr explicit dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Both may alias objects of other types, as on a GPU, and must be aligned.
struct __attribute__((may_alias, aligned(16))) uint4 {
  unsigned x, y, z, w;
};
struct __attribute__((may_alias, aligned(8))) float2 {
  float x, y;
};

// The indices of the thread whose fiber runs.
inline dim3 threadIdx;
inline dim3 blockIdx;
inline dim3 blockDim;
inline dim3 gridDim;

void __syncthreads();
int __syncthreads_or(int predicate);
void __syncwarp();
unsigned __ballot_sync(unsigned mask, int predicate);
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
float __shfl_xor_sync(unsigned mask, float value, int lane_mask);
double __shfl_xor_sync(unsigned mask, double value, int lane_mask);
inline void __stwb(uint4* to, uint4 value) { *to = value; }

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyDefault, cudaMemcpyDeviceToDevice };

inline const char* cudaGetErrorString(cudaError_t) { return "emulated"; }
inline cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = nullptr;
  return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t) {
  return cudaMemcpy(to, from, bytes, kind);
}
inline cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                                     std::size_t width, std::size_t height, cudaMemcpyKind, cudaStream_t) {
  for (std::size_t r = 0; r < height; ++r) {
    std::memcpy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch,
                width);
  }
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

// NOLINTEND(readability-identifier-naming,bugprone-reserved-identifier)
