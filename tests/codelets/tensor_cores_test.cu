// SPDX-License-Identifier: Apache-2.0
// The functions of tensor_cores.cuh by themselves, on a GPU where there is one and in the emulator. Both must
// have the same layouts of fragments: a mistake in either fails here.
#include "codelets/cuda/kernels/tensor_cores.cuh"

#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "codelets/cuda/kernels/rows.cuh"
#include "codelets/devices.hpp"

namespace starpipe::model::cuda {
namespace {

using namespace testing;

constexpr int size = 16;               // rows and columns of the matrices
constexpr int tile_stride = size + 8;  // elements from row to row in shared memory

/// product = left * right, all 16x16 and row-major; with `by_column`, `right` is column-major. Rows of `left`
/// from row `rows` on count as 0.
__global__ void multiply(const Bf16* left, const Bf16* right, bool by_column, int rows, float* product) {
  auto* const a = reinterpret_cast<Bf16*>(shared_floats());
  Bf16* const b = a + size * tile_stride;
  const int lane = static_cast<int>(threadIdx.x);
  const int row = lane / 2;
  const int column = lane % 2 * 8;
  tensor_cores::copy_async<16>(a + row * tile_stride + column, left + row * size + column, row < rows);
  tensor_cores::copy_async<16>(b + row * tile_stride + column, right + row * size + column, true);
  tensor_cores::wait_for_copies();
  __syncwarp();

  const int at = lane % 16 * tile_stride + lane / 16 * 8;
  const tensor_cores::FragmentA of_a = tensor_cores::load_matrices(a + at);
  const tensor_cores::Matrices of_b =
      by_column ? tensor_cores::load_matrices(b + at) : tensor_cores::load_matrices_transposed(b + at);
  tensor_cores::Accumulator halves[2];
  if (by_column) {
    tensor_cores::multiply_add(halves[0], of_a, of_b.of[0], of_b.of[2]);
    tensor_cores::multiply_add(halves[1], of_a, of_b.of[1], of_b.of[3]);
  } else {
    tensor_cores::multiply_add(halves[0], of_a, of_b.of[0], of_b.of[1]);
    tensor_cores::multiply_add(halves[1], of_a, of_b.of[2], of_b.of[3]);
  }
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) {
      product[(lane / 4 + i / 2 * 8) * size + half * 8 + lane % 4 * 2 + i % 2] = halves[half].at[i];
    }
  }
}

__global__ void pack_pairs(const float* pairs, unsigned* packed) {
  const unsigned i = threadIdx.x;
  packed[i] = tensor_cores::pack(pairs[2 * i], pairs[2 * i + 1]);
}

__global__ void raise_two(float* x) { x[threadIdx.x] = tensor_cores::exp2_approximate(x[threadIdx.x]); }

class TensorCores : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = Gpu::missing(); !reason.empty())
      GTEST_SKIP() << "no CUDA device: " << reason;
    gpu_ = std::make_unique<Gpu>();
  }
  std::unique_ptr<Gpu> gpu_;
};

TEST_F(TensorCores, Multiply) {
  std::mt19937 bits(1);
  std::uniform_int_distribution<int> small(-9, 9);
  const auto matrix = [&] {
    Floats values(size * size);
    for (float& x : values) x = static_cast<float>(small(bits));
    return values;
  };
  const Floats a = matrix();
  const Floats b = matrix();
  for (const int rows : {16, 5}) {
    for (const bool by_column : {false, true}) {
      Floats expected(size * size, 0.0f);
      for (int i = 0; i < size * size * size; ++i) {
        const int row = i / size / size;
        const int column = i / size % size;
        const int k = i % size;
        if (row < rows) {
          expected[row * size + column] +=
              a[row * size + k] * b[by_column ? column * size + k : k * size + column];
        }
      }
      DeviceFloats left(*gpu_, encoded(Precision::bf16, a));
      DeviceFloats right(*gpu_, encoded(Precision::bf16, b));
      DeviceFloats product(*gpu_, std::size_t{size * size});
      launch(gpu_->context(), "multiply", {dim3(1), dim3(warp_size), size * tile_stride}, multiply,
             reinterpret_cast<const Bf16*>(left.span().data()),
             reinterpret_cast<const Bf16*>(right.span().data()), by_column, rows, product.span().data());
      EXPECT_EQ(product.read("product"), expected)
          << rows << " rows, right by " << (by_column ? "column" : "row");
    }
  }
}

TEST_F(TensorCores, Pack) {
  const Floats pairs = {1, 2, 1.00390625f, -1.01171875f, 0, 3.14159265f};
  DeviceFloats from(*gpu_, pairs);
  const Floats expected = encoded(Precision::bf16, pairs);
  DeviceFloats packed(*gpu_, Floats(expected.size(), 0.0f));
  launch(gpu_->context(), "pack", {dim3(1), dim3(3)}, pack_pairs,
         static_cast<const float*>(from.span().data()), reinterpret_cast<unsigned*>(packed.span().data()));
  EXPECT_EQ(packed.read("packed"), expected);
}

TEST_F(TensorCores, RaiseTwo) {
  const Floats powers = {0, 3, -0.5f, -20.25f, -std::numeric_limits<float>::infinity()};
  DeviceFloats x(*gpu_, powers);
  launch(gpu_->context(), "exp2", {dim3(1), dim3(5)}, raise_two, x.span().data());
  const Floats results = x.read("2^x");
  for (std::size_t i = 0; i < powers.size(); ++i) {
    const double expected = std::exp2(static_cast<double>(powers[i]));
    EXPECT_NEAR(results[i], expected, std::ldexp(expected, -21));
  }
}

}  // namespace
}  // namespace starpipe::model::cuda
