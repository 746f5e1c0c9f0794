// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plan/search/partition.hpp"
#include "starpipe/model/backend.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Measured costs of the units of a model, and how much they varied.
struct MeasuredUnits {
  plan::Profile profile;                             ///< medians in seconds, sizes in bytes
  std::vector<std::vector<plan::Durations>> spread;  ///< interquartile ranges in seconds, by device and unit
};

/// The weights that the units of a model share. `by_unit`: the model with each unit as a stage.
std::vector<plan::SharedUnits> shared_units(const model::Network& by_unit);

/// Measures F, B and W of each unit of the model (of the first branch, where the model has several) on each
/// kind of device that `runtime.device` has. Real micro-batches run through the units, on one thread or on a
/// stream of the current GPU: one to warm up, then `repetitions` that count. On a GPU the measurement waits
/// for each pass, so a pass's time includes its launch. Needs no StarPU. Throws InputError as
/// `make_experiment` does for model and data, and for `cuda` where there is no GPU.
MeasuredUnits measure_units(const Config& config, int repetitions = 9);

// Where `profile` times kernels: a core or a GPU's stream with memory of its own, without StarPU.

/// A core, or a stream of the current GPU.
class KernelBench {
 public:
  virtual ~KernelBench() = default;
  [[nodiscard]] virtual const model::Backend& backend() const = 0;
  [[nodiscard]] virtual bool is_gpu() const = 0;
  /// `size` zeros in the bench's memory. The bench must outlive them. Throws std::runtime_error when there is
  /// too little memory.
  [[nodiscard]] virtual std::shared_ptr<float> allocate(std::size_t size) const = 0;
  /// Copies from the host's memory; both spans have the same size.
  virtual void fill(std::span<float> to, std::span<const float> from) const = 0;
  /// Returns when the backend has finished all work.
  virtual void wait() const = 0;

  /// Seconds from the call of `function` until the backend has finished its work.
  template <class Function>
  [[nodiscard]] double seconds(Function&& function) const {
    const auto start = std::chrono::steady_clock::now();
    function();
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

/// For "cpu" or "cuda"; check_device has found such a device.
std::unique_ptr<KernelBench> make_kernel_bench(const std::string& kind);

/// An array of floats in a bench's memory.
class BenchVector {
 public:
  BenchVector() = default;
  BenchVector(const KernelBench& bench, std::size_t size) : memory_(bench.allocate(size)), size_(size) {}
  BenchVector(const KernelBench& bench, std::span<const float> values) : BenchVector(bench, values.size()) {
    bench.fill(*this, values);
  }
  operator std::span<float>() { return {memory_.get(), size_}; }
  operator std::span<const float>() const { return {memory_.get(), size_}; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::shared_ptr<float> memory_;
  std::size_t size_ = 0;
};

}  // namespace starpipe::runtime
