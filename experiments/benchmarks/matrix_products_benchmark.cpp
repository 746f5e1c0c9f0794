// SPDX-License-Identifier: Apache-2.0
// The rate of this machine's matrix products; gpt2.py prints the share of it that training reaches. On the
// CPU it uses one thread, like a worker. If the build has CUDA and the machine has a GPU, it uses the first
// GPU, in each precision of training. The argument is the number of rows and columns of the matrices.
//
//   matrix_products_benchmark --benchmark_counters_tabular=true
#include <cstddef>
#include <vector>

#include <benchmark/benchmark.h>
#include <cblas.h>

#ifdef STARPIPE_WITH_CUDA
#include <cublas_v2.h>
#include <cuda_runtime.h>
#endif

namespace {

double flops(std::int64_t size) { return 2.0 * static_cast<double>(size * size * size); }

void count(benchmark::State& state) {
  state.counters["FLOP/s"] =
      benchmark::Counter(flops(state.range(0)), benchmark::Counter::kIsIterationInvariantRate);
}

void cpu_fp32(benchmark::State& state) {
  openblas_set_num_threads(1);
  const auto size = static_cast<int>(state.range(0));
  const std::vector<float> a(static_cast<std::size_t>(size) * static_cast<std::size_t>(size), 0.5f);
  const std::vector<float> b = a;
  std::vector<float> c = a;
  for ([[maybe_unused]] auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1, a.data(), size, b.data(),
                size, 0, c.data(), size);
    benchmark::ClobberMemory();
  }
  count(state);
}
BENCHMARK(cpu_fp32)->Arg(2048)->UseRealTime();

#ifdef STARPIPE_WITH_CUDA

struct Products {
  cudaDataType_t type;
  std::size_t bytes;  ///< size of an element
  cublasComputeType_t compute;
};

/// Memory, events and handle of one benchmark on the GPU; `good` says whether all could be created.
class Gpu {
 public:
  Gpu(const Products& kind, std::size_t size) : kind_(kind), size_(size) {
    int devices = 0;
    good_ = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0 &&
            cublasCreate(&cublas_) == CUBLAS_STATUS_SUCCESS;
    good_ = good_ && cudaEventCreate(&start_) == cudaSuccess && cudaEventCreate(&end_) == cudaSuccess;
    for (void*& matrix : matrices_) {
      const std::size_t bytes = size * size * kind.bytes;
      // 0x3c is a small number in each of the types. With zeros, a GPU would run at another clock rate.
      good_ = good_ && cudaMalloc(&matrix, bytes) == cudaSuccess &&
              cudaMemset(matrix, 0x3c, bytes) == cudaSuccess;
    }
  }
  ~Gpu() {
    for (void* matrix : matrices_) cudaFree(matrix);
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (cublas_ != nullptr) cublasDestroy(cublas_);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  [[nodiscard]] bool good() const { return good_; }

  /// Seconds of one product on the GPU; negative when it fails.
  [[nodiscard]] double multiply() {
    const float one = 1;
    const float zero = 0;
    const int n = static_cast<int>(size_);
    float milliseconds = 0;
    const bool done = cudaEventRecord(start_) == cudaSuccess &&
                      cublasGemmEx(cublas_, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, matrices_[0], kind_.type,
                                   n, matrices_[1], kind_.type, n, &zero, matrices_[2], kind_.type, n,
                                   kind_.compute, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS &&
                      cudaEventRecord(end_) == cudaSuccess && cudaEventSynchronize(end_) == cudaSuccess &&
                      cudaEventElapsedTime(&milliseconds, start_, end_) == cudaSuccess;
    return done ? static_cast<double>(milliseconds) / 1e3 : -1;
  }

 private:
  Products kind_;
  std::size_t size_;
  cublasHandle_t cublas_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* matrices_[3] = {};
  bool good_ = false;
};

void cuda(benchmark::State& state, const Products& kind) {
  Gpu gpu(kind, static_cast<std::size_t>(state.range(0)));
  if (!gpu.good() || gpu.multiply() < 0) {  // the first product loads the kernel
    state.SkipWithError("no CUDA device, or not enough of its memory");
    return;
  }
  for ([[maybe_unused]] auto _ : state) {
    const double seconds = gpu.multiply();
    if (seconds < 0) {
      state.SkipWithError("the GPU failed");
      return;
    }
    state.SetIterationTime(seconds);
  }
  count(state);
}
BENCHMARK_CAPTURE(cuda, fp32, Products{CUDA_R_32F, 4, CUBLAS_COMPUTE_32F})->Arg(8192)->UseManualTime();
BENCHMARK_CAPTURE(cuda, tf32, Products{CUDA_R_32F, 4, CUBLAS_COMPUTE_32F_FAST_TF32})
    ->Arg(8192)
    ->UseManualTime();
BENCHMARK_CAPTURE(cuda, bf16, Products{CUDA_R_16BF, 2, CUBLAS_COMPUTE_32F})->Arg(8192)->UseManualTime();

#endif

}  // namespace
