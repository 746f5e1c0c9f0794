// SPDX-License-Identifier: Apache-2.0
// The devices on which a test runs: the CPU, and with STARPIPE_TEST_CUDA a GPU, which is an emulated one when
// the program was compiled with the headers of tests/codelets/emulated_cuda.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/gradients.hpp"
#include "starpipe/model/backend.hpp"

#ifdef STARPIPE_TEST_CUDA
#include "codelets/cuda/backend/stream_backend.hpp"
#include "codelets/cuda/kernels/device.hpp"
#endif

namespace starpipe::model::testing {

/// A backend and its memory.
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual const Backend& backend() const = 0;
  [[nodiscard]] virtual bool is_gpu() const = 0;
  [[nodiscard]] virtual std::shared_ptr<float> allocate(std::size_t size) const = 0;
  /// Copies `size` floats between the host and the device, either way, after waiting for all work of the
  /// backend.
  virtual void copy(const float* from, float* to, std::size_t size) const = 0;
};

class Cpu final : public Device {
 public:
  const Backend& backend() const override { return cpu_backend(); }
  bool is_gpu() const override { return false; }
  std::shared_ptr<float> allocate(std::size_t size) const override {
    return {new float[size], std::default_delete<float[]>()};
  }
  void copy(const float* from, float* to, std::size_t size) const override { std::copy_n(from, size, to); }
};

#ifdef STARPIPE_TEST_CUDA

class Gpu final : public Device {
 public:
  Gpu() {
    cuda::check(cudaStreamCreate(&on_.stream), "stream");
    cuda::check(cublasLtCreate(&on_.cublas), "handle");
    backend_ = std::make_unique<cuda::StreamBackend>(on_);
  }
  ~Gpu() override {
    cublasLtDestroy(on_.cublas);
    cudaStreamDestroy(on_.stream);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const Backend& backend() const override { return *backend_; }
  bool is_gpu() const override { return true; }
  const cuda::Context& context() const { return on_; }
  std::shared_ptr<float> allocate(std::size_t size) const override {
    void* memory = nullptr;
    cuda::check(cudaMalloc(&memory, size * sizeof(float)), "memory");
    return {static_cast<float*>(memory), [](float* at) { cudaFree(at); }};
  }
  void copy(const float* from, float* to, std::size_t size) const override {
    cuda::check(cudaStreamSynchronize(on_.stream), "stream");
    cuda::check(cudaMemcpy(to, from, size * sizeof(float), cudaMemcpyDefault), "copy");
  }

  /// Returns why there is no GPU; an empty string if there is one.
  static std::string missing() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) return cudaGetErrorString(status);
    return count == 0 ? "none found" : "";
  }

 private:
  cuda::Context on_{};
  std::unique_ptr<cuda::StreamBackend> backend_;
};

#endif

/// `kind`: "cpu" or "cuda". Null, with the `reason` set, when there is no such device.
inline std::unique_ptr<Device> make_device(const std::string& kind, std::string& reason) {
  if (kind == "cpu") return std::make_unique<Cpu>();
#ifdef STARPIPE_TEST_CUDA
  reason = Gpu::missing();
  if (reason.empty()) return std::make_unique<Gpu>();
#else
  reason = "built without CUDA";
#endif
  return nullptr;
}

/// A word that is NaN both as a float and as two bf16.
inline const float poison_value = std::bit_cast<float>(0x7fc07fc0u);

/// The numbers as an array in the precision.
inline Floats encoded(Precision precision, const Floats& values) {
  if (precision != Precision::bf16) return values;
  Floats array(words(precision, values.size()), 0.0f);
  round_to_bf16(values, array);
  return array;
}
/// The numbers of an array in the precision, as floats: its `elements` numbers, then the `floats` behind
/// them.
inline Floats decoded(Precision precision, const Floats& array, std::size_t elements,
                      std::size_t floats = 0) {
  if (precision != Precision::bf16) return array;
  Floats values(elements + floats);
  widen_bf16(array, std::span(values).first(elements));
  const auto behind = array.begin() + static_cast<std::ptrdiff_t>(words(precision, elements));
  std::copy_n(behind, floats, values.begin() + static_cast<std::ptrdiff_t>(elements));
  return values;
}

/// Words in a device's memory, between guards that no kernel may overwrite. They begin `shift` words after a
/// multiple of 64 bytes.
class DeviceFloats {
 public:
  DeviceFloats(const Device& device, std::span<const float> start, std::size_t shift = 0)
      : device_(device), first_(guard_words + shift), size_(start.size()) {
    Floats all(first_ + size_ + guard_words, guard_value);
    std::copy(start.begin(), start.end(), all.begin() + static_cast<std::ptrdiff_t>(first_));
    memory_ = device.allocate(all.size());
    device.copy(all.data(), memory_.get(), all.size());
  }
  /// `size` words of poison_value.
  DeviceFloats(const Device& device, std::size_t size, std::size_t shift = 0)
      : DeviceFloats(device, Floats(size, poison_value), shift) {}

  std::span<float> span() { return {memory_.get() + first_, size_}; }
  operator std::span<float>() { return span(); }
  operator std::span<const float>() { return span(); }

  /// The words, on the host. Expects that the guards are untouched; `what` names the array in failures.
  Floats read(const std::string& what) const {
    Floats all(first_ + size_ + guard_words);
    device_.copy(memory_.get(), all.data(), all.size());
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first_);
    const auto end = begin + static_cast<std::ptrdiff_t>(size_);
    const auto is_mark = [](float value) { return value == guard_value; };
    EXPECT_TRUE(std::all_of(all.begin(), begin, is_mark)) << what << ": written before its start";
    EXPECT_TRUE(std::all_of(end, all.end(), is_mark)) << what << ": written past its end";
    return {begin, end};
  }

 private:
  static constexpr std::size_t guard_words = 16;
  static constexpr float guard_value = 12345.0f;
  const Device& device_;
  std::size_t first_;
  std::size_t size_;
  std::shared_ptr<float> memory_;
};

/// Expects |a[i] - b[i]| <= tolerance * max(|b|, largest) for each i. NaN is never close. `largest`: of the
/// numbers that were added up, where their sum may be near 0.
template <class Values>
void expect_close(std::span<const float> a, const Values& b, const std::string& what, double tolerance,
                  double largest = 0) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (const auto value : b) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    ASSERT_TRUE(off <= tolerance * largest)
        << what << "[" << i << "] is " << a[i] << ", not " << b[i] << "; the largest is " << largest;
  }
}

}  // namespace starpipe::model::testing
