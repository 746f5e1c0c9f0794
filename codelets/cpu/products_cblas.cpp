// SPDX-License-Identifier: Apache-2.0
#include <exception>

#include <cblas.h>

#include "codelets/cpu/products.hpp"

namespace starpipe::model::cpu {

void multiply(std::size_t m, std::size_t n, std::size_t k, Matrix a, Matrix b, Result result, float* c,
              std::size_t c_stride) noexcept {
  const auto i = [](std::size_t value) { return static_cast<int>(value); };
  const auto layout = [](Matrix of) { return of.transposed ? CblasTrans : CblasNoTrans; };
  cblas_sgemm(CblasRowMajor, layout(a), layout(b), i(m), i(n), i(k), 1, a.data, i(a.stride), b.data,
              i(b.stride), result == Result::is_added ? 1.0f : 0.0f, c, i(c_stride));
}

std::optional<Bf16Product> Bf16Product::prepare(const Bf16Sizes& /*sizes*/) { return std::nullopt; }

void Bf16Product::operator()(const Bf16* /*a*/, const Bf16* /*b*/, const Bf16* /*bias*/, void* /*c*/,
                             FloatView /*scratch*/) const noexcept {
  std::terminate();  // there is no such product
}

}  // namespace starpipe::model::cpu
