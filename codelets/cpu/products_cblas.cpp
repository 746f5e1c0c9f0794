// SPDX-License-Identifier: Apache-2.0
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

}  // namespace starpipe::model::cpu
