// SPDX-License-Identifier: Apache-2.0
// Matrix products on a core. A build has one of the implementations products_onednn.cpp and
// products_cblas.cpp (option STARPIPE_PRODUCTS of CMake).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "model/bf16.hpp"
#include "starpipe/model/memory_view.hpp"

namespace starpipe::model::cpu {

/// An operand of multiply(), stored row-major.
struct Matrix {
  const float* data;
  std::size_t stride;       ///< floats from row to row of the stored matrix
  bool transposed = false;  ///< true if the operand is the transpose of the stored matrix
};

/// Says whether a product replaces C, or is added to C.
enum class Result { replaces, is_added };

/// C = A B, or C += A B. A is m x k, B k x n and C m x n, row-major with `c_stride` floats from row to row.
/// Without is_added, C may hold anything, NaN included. The bits of C depend on sizes, strides and numbers,
/// and not on addresses. Thread-safe. Uses the calling thread only, with one exception: an OpenBLAS uses as
/// many threads as it was told to (runtime/host/product_library.hpp).
void multiply(std::size_t m, std::size_t n, std::size_t k, Matrix a, Matrix b, Result result, float* c,
              std::size_t c_stride) noexcept;

/// The sizes of a product of matrices in bf16, C = A B. A is m x k, B k x n and C m x n, row-major.
struct Bf16Sizes {
  struct Operand {
    std::size_t stride;       ///< elements from row to row of the stored matrix
    bool transposed = false;  ///< as in Matrix
  };
  enum class To { bf16, floats, added_to_floats };

  std::size_t m, n, k;
  Operand a, b;
  std::size_t c_stride;
  To to;
  bool bias = false;  ///< adds a row of n numbers in bf16 to each row of C
};

/// A product of matrices in bf16, prepared for its sizes. Its sums are in fp32. As with multiply(), its bits
/// do not depend on addresses, and it uses the calling thread only. Immutable; thread-safe.
class Bf16Product {
 public:
  /// Returns nullopt where such a product would not be faster than one of floats: the processor or the
  /// library has no instructions for it (AVX512-BF16, AMX). Takes milliseconds for new sizes.
  static std::optional<Bf16Product> prepare(const Bf16Sizes& sizes);

  /// Returns the floats of scratch that the product needs.
  [[nodiscard]] std::size_t scratch_size() const { return scratch_size_; }
  /// Computes C, which is an array of Bf16 or of floats, as `to` of the sizes says. It may hold anything if
  /// it is not added to. `bias` is null for sizes without one. The library may allocate memory.
  void operator()(const Bf16* a, const Bf16* b, const Bf16* bias, void* c, FloatView scratch) const noexcept;

 private:
  struct Prepared;
  Bf16Product(std::shared_ptr<const Prepared> prepared, std::size_t scratch_size)
      : prepared_(std::move(prepared)), scratch_size_(scratch_size) {}

  std::shared_ptr<const Prepared> prepared_;
  std::size_t scratch_size_;
};

}  // namespace starpipe::model::cpu
