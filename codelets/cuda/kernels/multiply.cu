// SPDX-License-Identifier: Apache-2.0
#include "codelets/cuda/kernels/multiply.hpp"

#include <compare>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <type_traits>

#include "codelets/cuda/kernels/for_each.cuh"

namespace starpipe::model::cuda {
namespace {

constexpr const char* product_name = "matrix product";

template <class T>
constexpr cudaDataType_t data_type = CUDA_R_32F;
template <>
constexpr cudaDataType_t data_type<Bf16> = CUDA_R_16BF;

/// Bytes. Tensor cores, and the kernels that read a bias, need at most this alignment.
constexpr std::uint32_t wanted_alignment = 16;

/// Returns the address's alignment in bytes, at most `max`, which is a power of two.
std::uint32_t alignment(const void* at, std::uint32_t max) noexcept {
  const auto bits = reinterpret_cast<std::uintptr_t>(at) | max;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

struct Operand {
  cudaDataType_t type;
  std::size_t rows;
  std::size_t columns;
  bool transposed;
  std::uint32_t alignment;
  auto operator<=>(const Operand&) const = default;
};

template <class T>
Operand operand(const Matrix<T>& matrix) noexcept {
  return {data_type<std::remove_const_t<T>>, matrix.rows, matrix.columns, matrix.transposed,
          alignment(matrix.data, wanted_alignment)};
}

/// Everything that the choice of an algorithm depends on.
struct Problem {
  int device;
  cublasComputeType_t compute;
  Operand a;
  Operand b;
  Operand c;
  std::uint32_t bias_alignment;  ///< 0 without a bias
  std::size_t workspace;         ///< bytes
  auto operator<=>(const Problem&) const = default;
};

void set(cublasLtMatmulDescOpaque_t& of, cublasLtMatmulDescAttributes_t attribute, const auto& value) {
  check(cublasLtMatmulDescSetAttribute(&of, attribute, &value, sizeof(value)), product_name);
}
void set(cublasLtMatmulPreferenceOpaque_t& of, cublasLtMatmulPreferenceAttributes_t attribute,
         const auto& value) {
  check(cublasLtMatmulPreferenceSetAttribute(&of, attribute, &value, sizeof(value)), product_name);
}

/// The problem as cuBLASLt describes it. cuBLASLt is column-major: our row-major matrices are their
/// transposes to it. So it is asked for C' = B' A', with our B as its first operand and our A as its second.
struct Descriptors {
  Descriptors(const Problem& problem, const void* bias) noexcept {
    check(cublasLtMatmulDescInit(&operation, problem.compute, CUDA_R_32F), product_name);
    const auto op = [](const Operand& o) { return o.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(operation, CUBLASLT_MATMUL_DESC_TRANSA, op(problem.b));
    set(operation, CUBLASLT_MATMUL_DESC_TRANSB, op(problem.a));
    if (bias != nullptr) {
      set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      // cuBLASLt derives the bias's alignment from its address.
      set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    const auto layout = [](cublasLtMatrixLayoutOpaque_t& of, const Operand& o) {
      check(cublasLtMatrixLayoutInit(&of, o.type, o.columns, o.rows, static_cast<std::int64_t>(o.columns)),
            product_name);
    };
    layout(a, problem.a);
    layout(b, problem.b);
    layout(c, problem.c);
  }

  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a;
  cublasLtMatrixLayoutOpaque_t b;
  cublasLtMatrixLayoutOpaque_t c;
};

/// Returns cuBLASLt's preferred algorithm; nullopt if it has none for this problem.
std::optional<cublasLtMatmulAlgo_t> ask(const Context& on, const Problem& problem,
                                        const void* bias) noexcept {
  Descriptors descriptors(problem, bias);
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), product_name);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{problem.workspace});
  // Without this mask cuBLASLt may add the partial sums of a bf16 product in bf16.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.b.alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.a.alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.c.alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.c.alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(on.cublas, &descriptors.operation, &descriptors.b, &descriptors.a,
                                     &descriptors.c, &descriptors.c, &preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && count == 0)) return {};
  check(status, product_name);
  if (found.state != CUBLAS_STATUS_SUCCESS) return {};
  return found.algo;
}

struct Algorithm {
  cublasLtMatmulAlgo_t of;
  bool adds_bias;  ///< otherwise a kernel of ours adds it
};

/// Prefers an algorithm that adds the bias. Ends the process when cuBLASLt has no algorithm at all.
Algorithm choose(const Context& on, const Problem& problem, const void* bias) noexcept {
  if (bias != nullptr) {
    if (const auto found = ask(on, problem, bias)) return {*found, true};
  }
  if (const auto found = ask(on, problem, nullptr)) return {*found, false};
  std::fprintf(stderr, "starpipe: cuBLAS: no algorithm for the %s of %zu x %zu and %zu x %zu\n", product_name,
               problem.a.rows, problem.a.columns, problem.b.rows, problem.b.columns);
  std::abort();
}

/// Returns the algorithm for the problem. Each thread keeps its own choices, so that workers need no lock.
/// All threads ask cuBLASLt the same and get the same answer.
const Algorithm& algorithm(const Context& on, const Problem& problem, const void* bias) noexcept {
  thread_local std::map<Problem, Algorithm> chosen;
  const auto found = chosen.find(problem);
  if (found != chosen.end()) return found->second;
  return chosen.emplace(problem, choose(on, problem, bias)).first->second;
}

/// rows[i] += the bias of column i % columns, for for_each().
template <class T>
struct AddBias {
  const T* bias;
  T* rows;
  std::size_t columns;
  __device__ void operator()(std::size_t i) const {
    rows[i] = static_cast<T>(static_cast<float>(rows[i]) + static_cast<float>(bias[i % columns]));
  }
};

}  // namespace

template <class T, class Sum>
void multiply(const Context& on, cublasComputeType_t compute, const Matrix<const T>& a,
              const Matrix<const T>& b, float beta, const Matrix<Sum>& c, const Sum* bias,
              FloatView scratch) noexcept {
  // The workspace begins at a multiple of 256 bytes.
  constexpr std::size_t aligned = 256 / sizeof(float);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(scratch.data()) / sizeof(float) % aligned;
  float* const workspace = scratch.data() + (aligned - past) % aligned;
  const std::size_t size = workspace_size(c.rows, c.columns);
  if (bias != nullptr && alignment(bias, wanted_alignment) < wanted_alignment) {
    // The preferences cannot tell cuBLASLt how a bias is aligned, and its kernels fail with less: so pass a
    // copy.
    float* const copy = workspace + size;
    check(cudaMemcpyAsync(copy, bias, c.columns * sizeof(Sum), cudaMemcpyDeviceToDevice, on.stream),
          product_name);
    bias = reinterpret_cast<const Sum*>(copy);
  }

  int device = 0;
  check(cudaGetDevice(&device), product_name);
  const Problem problem{.device = device,
                        .compute = compute,
                        .a = operand(a),
                        .b = operand(b),
                        .c = operand(c),
                        .bias_alignment = bias == nullptr ? 0 : alignment(bias, 256),
                        .workspace = size * sizeof(float)};
  const Algorithm& chosen = algorithm(on, problem, bias);
  Descriptors descriptors(problem, chosen.adds_bias ? bias : nullptr);
  const float alpha = 1;
  check(cublasLtMatmul(on.cublas, &descriptors.operation, &alpha, b.data, &descriptors.b, a.data,
                       &descriptors.a, &beta, c.data, &descriptors.c, c.data, &descriptors.c, &chosen.of,
                       workspace, problem.workspace, on.stream),
        product_name);
  if (bias == nullptr || chosen.adds_bias) return;
  for_each(on, "bias", c.rows * c.columns, AddBias<Sum>{bias, c.data, c.columns});
}

template void multiply(const Context&, cublasComputeType_t, const Matrix<const float>&,
                       const Matrix<const float>&, float, const Matrix<float>&, const float*,
                       FloatView) noexcept;
template void multiply(const Context&, cublasComputeType_t, const Matrix<const Bf16>&,
                       const Matrix<const Bf16>&, float, const Matrix<Bf16>&, const Bf16*,
                       FloatView) noexcept;
template void multiply(const Context&, cublasComputeType_t, const Matrix<const Bf16>&,
                       const Matrix<const Bf16>&, float, const Matrix<float>&, const float*,
                       FloatView) noexcept;

}  // namespace starpipe::model::cuda
