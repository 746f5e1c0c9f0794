// SPDX-License-Identifier: Apache-2.0
// The part of cuBLASLt that we use, on CBLAS; see cuda_runtime.h. It refuses arguments that contradict each
// other by NVIDIA's documentation and addresses that are less aligned than the algorithm was promised, and it
// overwrites the workspace.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <cblas.h>

#include "cuda_bf16.h"
#include "cuda_runtime.h"

// NOLINTBEGIN(readability-identifier-naming)

using cublasLtHandle_t = void*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED };
enum cublasOperation_t : std::int32_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16BF };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cublasLtEpilogue_t : std::uint32_t { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 };
enum cublasLtReductionScheme_t {
  CUBLASLT_REDUCTION_SCHEME_NONE = 0,
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
  CUBLASLT_REDUCTION_SCHEME_MASK = 7,
};
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER,
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
};

struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;
  bool operator==(const cublasLtMatrixLayoutOpaque_t&) const = default;
};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t op_a, op_b;
  cublasLtEpilogue_t epilogue;
  const void* bias;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace;
  std::uint32_t reductions;
  std::uint32_t alignments[4];  // of A, B, C, D
};
/// An algorithm is the problem that it was chosen for.
struct cublasLtMatmulAlgo_t {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;
  std::uint64_t workspace;
  std::uint32_t alignments[4];
  std::uint32_t bias_alignment;
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  std::size_t workspaceSize;
  cublasStatus_t state;
};
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;

inline const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "emulated: invalid value" : "emulated: not supported";
}
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                               std::uint64_t rows, std::uint64_t columns,
                                               std::int64_t stride) {
  *layout = {type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t compute,
                                             cudaDataType_t scale) {
  *operation = {compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}

template <class Value>
cublasStatus_t emulated_set(Value& attribute, const void* value, std::size_t size) {
  if (value == nullptr || size != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&attribute, value, size);
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t of,
                                                     cublasLtMatmulDescAttributes_t attribute,
                                                     const void* value, std::size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return emulated_set(of->op_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return emulated_set(of->op_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return emulated_set(of->epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return emulated_set(of->bias, value, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t of,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void* value, std::size_t size) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return emulated_set(of->workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return emulated_set(of->reductions, value, size);
    default:
      return emulated_set(of->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                          size);
  }
}

inline bool emulated_aligned(const void* at, std::uint32_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

/// True if the sizes, leading dimensions and types describe a product that cuBLASLt supports.
inline bool emulated_fits(const cublasLtMatmulDescOpaque_t& operation, const cublasLtMatrixLayoutOpaque_t& a,
                          const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& c,
                          const cublasLtMatrixLayoutOpaque_t& d) {
  for (const auto& layout : {a, b, c, d}) {
    if (layout.rows == 0 || layout.columns == 0 || layout.stride < static_cast<std::int64_t>(layout.rows))
      return false;
  }
  const bool a_as_is = operation.op_a == CUBLAS_OP_N;
  const bool b_as_is = operation.op_b == CUBLAS_OP_N;
  const std::uint64_t k = a_as_is ? a.columns : a.rows;
  return d.rows == (a_as_is ? a.rows : a.columns) && d.columns == (b_as_is ? b.columns : b.rows) &&
         k == (b_as_is ? b.rows : b.columns) && c.rows == d.rows && c.columns == d.columns &&
         a.type == b.type && c.type == d.type && (d.type == CUDA_R_32F || d.type == a.type) &&
         operation.scale == CUDA_R_32F &&
         (operation.epilogue == CUBLASLT_EPILOGUE_BIAS) == (operation.bias != nullptr);
}

/// There is one algorithm. It uses the whole workspace, and needs the alignments that it was promised.
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int requested,
                                                     cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = 0;
  if (requested < 1 || !emulated_fits(*operation, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  // Any other scheme may round partial sums to bf16. Tests of the result would not notice, so it is refused
  // here.
  if (preference->reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) return CUBLAS_STATUS_NOT_SUPPORTED;
  // cuBLASLt does not document the products to which it can add a bias. Here it cannot for products of one
  // column.
  if (operation->epilogue == CUBLASLT_EPILOGUE_BIAS && d->rows == 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  cublasLtMatmulAlgo_t& algo = results[0].algo;
  algo = {*operation, *a, *b, *c, *d, preference->workspace, {}, 1};
  std::memcpy(algo.alignments, preference->alignments, sizeof(algo.alignments));
  while (algo.bias_alignment < 256 && emulated_aligned(operation->bias, 2 * algo.bias_alignment)) {
    algo.bias_alignment *= 2;
  }
  results[0].workspaceSize = preference->workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

/// `count` numbers of an operand, as floats. For TF32 the mantissa is cut to 10 bits, the worst that a GPU
/// may do.
inline std::vector<float> emulated_operand(const void* from, std::size_t count, cudaDataType_t type,
                                           cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
  std::vector<float> operand(count);
  for (std::size_t i = 0; i < count; ++i) {
    operand[i] = type == CUDA_R_16BF ? static_cast<float>(static_cast<const __nv_bfloat16*>(from)[i])
                                     : static_cast<const float*>(from)[i];
    if (compute == CUBLAS_COMPUTE_32F) continue;
    operand[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(operand[i]) & 0xffffe000u);
  }
  return operand;
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                                     const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                     cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                     cublasLtMatrixLayout_t c_layout, void* d,
                                     cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                                     void* workspace, std::size_t workspace_size, cudaStream_t) {
  const cublasLtMatmulDescOpaque_t& chosen_for = algo->operation;
  const bool has_bias = operation->epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (!emulated_fits(*operation, *a_layout, *b_layout, *c_layout, *d_layout) || *a_layout != algo->a ||
      *b_layout != algo->b || *c_layout != algo->c || *d_layout != algo->d ||
      operation->compute != chosen_for.compute || operation->op_a != chosen_for.op_a ||
      operation->op_b != chosen_for.op_b || operation->epilogue != chosen_for.epilogue ||
      !emulated_aligned(a, algo->alignments[0]) || !emulated_aligned(b, algo->alignments[1]) ||
      !emulated_aligned(c, algo->alignments[2]) || !emulated_aligned(d, algo->alignments[3]) ||
      !emulated_aligned(workspace, 256) || workspace_size < algo->workspace || c != d) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // PyTorch has seen kernels fail with a bias aligned to less than 16 bytes, whatever cuBLASLt was told.
  if (has_bias && (!emulated_aligned(operation->bias, algo->bias_alignment) || algo->bias_alignment < 16))
    return CUBLAS_STATUS_INVALID_VALUE;

  // Fills the workspace with NaN: nothing else may be kept there.
  std::memset(workspace, 0xff, algo->workspace);
  const auto number = [](const void* at) { return *static_cast<const float*>(at); };
  const auto op = [](cublasOperation_t o) { return o == CUBLAS_OP_N ? CblasNoTrans : CblasTrans; };
  // Elements from the first to the last: there is no gap behind the last column.
  const auto size = [](const cublasLtMatrixLayoutOpaque_t& layout) {
    return static_cast<std::size_t>(layout.stride) * (layout.columns - 1) + layout.rows;
  };
  const auto left = emulated_operand(a, size(*a_layout), a_layout->type, operation->compute);
  const auto right = emulated_operand(b, size(*b_layout), b_layout->type, operation->compute);
  auto result = emulated_operand(c, size(*c_layout), c_layout->type);
  const auto i = [](auto value) { return static_cast<int>(value); };
  cblas_sgemm(CblasColMajor, op(operation->op_a), op(operation->op_b), i(d_layout->rows),
              i(d_layout->columns), i(operation->op_a == CUBLAS_OP_N ? a_layout->columns : a_layout->rows),
              number(alpha), left.data(), i(a_layout->stride), right.data(), i(b_layout->stride),
              number(beta), result.data(), i(d_layout->stride));
  const auto bias = emulated_operand(operation->bias, has_bias ? d_layout->rows : 0, d_layout->type);
  const auto stride = static_cast<std::size_t>(d_layout->stride);
  for (std::size_t column = 0; column < d_layout->columns; ++column) {
    for (std::size_t row = 0; row < d_layout->rows; ++row) {
      const std::size_t at = column * stride + row;
      const float value = result[at] + (has_bias ? bias[row] : 0.0f);
      if (d_layout->type == CUDA_R_16BF) {
        static_cast<__nv_bfloat16*>(d)[at] = __nv_bfloat16(value);
      } else {
        static_cast<float*>(d)[at] = value;
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

// NOLINTEND(readability-identifier-naming)
