// SPDX-License-Identifier: Apache-2.0
#include "runtime/setup/kernel_bench.hpp"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "starpipe/runtime/config/config.hpp"

#ifdef STARPIPE_WITH_CUDA
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "codelets/cuda/backend/stream_backend.hpp"
#include "starpipe/base/require.hpp"
#endif

namespace starpipe::runtime {
namespace {

class CoreBench final : public KernelBench {
 public:
  [[nodiscard]] const model::Backend& backend() const override { return model::cpu_backend(); }
  [[nodiscard]] bool is_gpu() const override { return false; }
  [[nodiscard]] std::shared_ptr<float> allocate(std::size_t size) const override {
    const auto memory = std::make_shared<std::vector<float>>(size);
    return {memory, memory->data()};
  }
  void fill(std::span<float> to, std::span<const float> from) const override {
    std::ranges::copy(from, to.begin());
  }
  void wait() const override {}
};

#ifdef STARPIPE_WITH_CUDA

void require_cuda(cudaError_t status, std::string_view action, std::string_view object) {
  require(status, "CUDA", action, object, cudaGetErrorString(status));
}

class StreamBench final : public KernelBench {
 public:
  StreamBench() {
    require_cuda(cudaStreamCreate(&on_.stream), "creating", "a stream");
    require(cublasLtCreate(&on_.cublas), "cuBLAS", "creating", "a handle");
    backend_ = std::make_unique<model::cuda::StreamBackend>(on_);
  }
  ~StreamBench() override {
    cublasLtDestroy(on_.cublas);
    cudaStreamDestroy(on_.stream);
  }
  StreamBench(const StreamBench&) = delete;
  StreamBench& operator=(const StreamBench&) = delete;

  [[nodiscard]] const model::Backend& backend() const override { return *backend_; }
  [[nodiscard]] bool is_gpu() const override { return true; }
  [[nodiscard]] std::shared_ptr<float> allocate(std::size_t size) const override {
    void* memory = nullptr;
    const std::size_t bytes = std::max<std::size_t>(1, size) * sizeof(float);
    require_cuda(cudaMalloc(&memory, bytes), "allocating", "memory");
    std::shared_ptr<float> owner(static_cast<float*>(memory), [](float* at) { cudaFree(at); });
    require_cuda(cudaMemset(memory, 0, bytes), "zeroing", "memory");
    return owner;
  }
  void fill(std::span<float> to, std::span<const float> from) const override {
    wait();
    require_cuda(cudaMemcpy(to.data(), from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "copying",
                 "to the GPU");
  }
  void wait() const override { require_cuda(cudaStreamSynchronize(on_.stream), "running", "a kernel"); }

 private:
  model::cuda::Context on_{};
  std::unique_ptr<model::cuda::StreamBackend> backend_;
};

#endif

}  // namespace

std::unique_ptr<KernelBench> make_kernel_bench(const std::string& kind) {
#ifdef STARPIPE_WITH_CUDA
  if (kind == cuda_device) return std::make_unique<StreamBench>();
#endif
  if (kind == cpu_device) return std::make_unique<CoreBench>();
  throw std::logic_error("no such device: " + kind);
}

}  // namespace starpipe::runtime
