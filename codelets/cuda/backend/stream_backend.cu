// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/backend/stream_backend.hpp"

#include <limits>

#include "codelets/cuda/kernels/device.hpp"
#include "codelets/cuda/kernels/element.hpp"
#include "codelets/cuda/kernels/for_each.cuh"

namespace starpipe::model::cuda {
namespace {

constexpr float largest_float = std::numeric_limits<float>::max();

struct Sum {
  __device__ void operator()(float a, float b, float& sum) const { sum = a + b; }
};

struct Rounded {
  __device__ void operator()(float from, float& to) const { to = from; }
};

/// *found = 1 if a number is infinite or NaN. All threads that write, write the same.
struct NonFinite {
  volatile float* found;
  __device__ void operator()(float x) const {
    if (!(fabsf(x) <= largest_float)) *found = 1;  // also for NaN
  }
};

}  // namespace

void StreamBackend::zero(Memory memory) const noexcept {
  check(cudaMemsetAsync(memory.data(), 0, memory.floats().size_bytes(), on_.stream), "zero");
}

void StreamBackend::copy(ConstMemory from, Memory to) const noexcept {
  check(cudaMemcpyAsync(to.data(), from.data(), from.floats().size_bytes(), cudaMemcpyDeviceToDevice,
                        on_.stream),
        "copy");
}

void StreamBackend::add(Precision precision, ConstMemory a, ConstMemory b, Memory sum) const noexcept {
  with_element(precision, [&]<class T>(T) {
    for_each_element<T>(on_, "add", sum.size() * sizeof(float) / sizeof(T), Sum(), a.as<T>(), b.as<T>(),
                        Out{sum.as<T>()});
  });
}

void StreamBackend::copy_columns(const std::byte* from, std::size_t from_stride, std::byte* to,
                                 std::size_t to_stride, std::size_t columns,
                                 std::size_t rows) const noexcept {
  check(cudaMemcpy2DAsync(to, to_stride, from, from_stride, columns, rows, cudaMemcpyDeviceToDevice,
                          on_.stream),
        "copy of columns");
}

void StreamBackend::round(ConstFloatView from, Memory to) const noexcept {
  for_each_element<Bf16>(on_, "round", from.size(), Rounded(), from.data(), Out{to.as<Bf16>()});
}

void StreamBackend::find_nonfinite(Precision precision, ConstMemory values, std::size_t count,
                                   float& found) const noexcept {
  with_element(precision, [&]<class T>(T) {
    for_each_element<T>(on_, "search for values that are not finite", count, NonFinite{&found},
                        values.as<T>());
  });
}

}  // namespace starpipe::model::cuda
