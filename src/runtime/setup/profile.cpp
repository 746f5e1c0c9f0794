// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/numbers.hpp"
#include "model/data/make_dataset.hpp"
#include "model/data/slice_rows.hpp"
#include "model/weights.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/product_library.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/setup/partition_choice.hpp"
#include "runtime/setup/run_checks.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/backend.hpp"
#include "starpipe/model/slice_sizes.hpp"
#include "starpipe/runtime/config/config.hpp"

#ifdef STARPIPE_WITH_CUDA
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "codelets/cuda/backend/stream_backend.hpp"
#endif

namespace starpipe::runtime {
namespace {

/// A core, or a stream of the current GPU, with memory of its own, on which passes are timed without StarPU.
class KernelBench {
 public:
  virtual ~KernelBench() = default;
  [[nodiscard]] virtual const model::Backend& backend() const = 0;
  [[nodiscard]] virtual bool is_gpu() const = 0;
  /// Returns `size` zeros in the bench's memory. The bench must outlive them. Throws std::runtime_error if
  /// there is too little memory.
  [[nodiscard]] virtual std::shared_ptr<float> allocate(std::size_t size) const = 0;
  /// Copies from the host's memory; both spans have the same size.
  virtual void fill(std::span<float> to, std::span<const float> from) const = 0;
  /// Returns when the backend has finished all work.
  virtual void wait() const = 0;

  /// Returns the seconds from the call of `function` until the backend has finished its work.
  template <class Function>
  [[nodiscard]] double seconds(Function&& function) const {
    const auto start = std::chrono::steady_clock::now();
    function();
    wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
};

/// An array of floats in a bench's memory. Copies share the memory.
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

// `kind`: "cpu" or "cuda"; check_device has found such a device.
std::unique_ptr<KernelBench> make_kernel_bench(const std::string& kind) {
#ifdef STARPIPE_WITH_CUDA
  if (kind == cuda_device) return std::make_unique<StreamBench>();
#endif
  if (kind == cpu_device) return std::make_unique<CoreBench>();
  throw std::logic_error("no such device: " + kind);
}

using Floats = std::vector<float>;

/// Times of the three passes of one unit, by repetition.
using Samples = std::array<std::vector<double>, 3>;

/// The sets that a unit shares.
struct SharedOnDevice {
  std::vector<model::ConstMemory> weights;
  std::vector<model::Memory> gradients;
};

/// A unit of a slice, or of whole sequences, and its data on the device.
struct UnitOnDevice {
  /// `other`: the same unit of the first slice, whose weights and gradient this one shares; null for the
  /// first slice.
  UnitOnDevice(const KernelBench& bench, const model::Stage& s, SharedOnDevice sets, std::uint64_t seed,
               const UnitOnDevice* other)
      : stage(&s),
        shared(std::move(sets)),
        weights(other != nullptr
                    ? other->weights
                    : BenchVector(bench, model::rounded_weights(s.precision(), model::initial_parameters(
                                                                                   s.parameters(), seed)))),
        output(bench, s.is_sink() ? 1 : s.output_size()),
        stash(bench, s.stash_size()),
        gradient_stash(bench, s.gradient_stash_size()),
        input_gradient(bench, s.input_size(0)),
        parameter_gradient(other != nullptr ? other->parameter_gradient
                                            : BenchVector(bench, s.parameter_size())),
        scratch(bench, s.scratch_size(bench.is_gpu())),
        keys_values(bench, s.keys_values_size()),
        earlier_gradient(bench, s.earlier_gradient_size()) {}

  [[nodiscard]] model::ConstParameters parameters() const { return {weights, shared.weights}; }
  [[nodiscard]] model::ParameterGradients gradients() { return {parameter_gradient, shared.gradients}; }

  const model::Stage* stage;
  SharedOnDevice shared;
  BenchVector weights, output, stash, gradient_stash, input_gradient, parameter_gradient, scratch;
  BenchVector keys_values, earlier_gradient;
};

/// Times by slice, unit and pass.
using PassTimes = std::vector<std::vector<std::array<double, 3>>>;

/// A micro-batch: F of each slice through all units, then B and W back from the last slice on.
class TimedMicrobatch {
 public:
  TimedMicrobatch(const KernelBench& bench, const Config& config, const model::Network& network,
                  std::size_t units)
      : bench_(bench),
        network_(network),
        data_(model::make_dataset(config.data, config.model,
                                  {.microbatches = config.training.microbatches.value_or(1),
                                   .microbatch_size = config.training.microbatch_size},
                                  config.training.seed)),
        loss_scale_(1.0F / static_cast<float>(config.training.microbatches.value_or(1))) {
    const std::size_t slices = std::max<std::size_t>(1, network.slices.size());
    for (std::size_t k = 0; k < slices; ++k)
      add_units(network, static_cast<int>(k), units, config.training.seed);
    for (const std::vector<UnitOnDevice>& slice : units_) {
      const model::Stage& last = *slice.back().stage;
      input_.emplace_back(bench, slice.front().stage->input_size(0));
      target_.emplace_back(bench, last.rows() * last.target_columns());
      gradient_.emplace_back(bench, Floats(last.output_size(), 1.0F));  // a number in any precision
    }
  }

  PassTimes repeat(int microbatch) {
    const auto slices = static_cast<int>(units_.size());
    PassTimes times(units_.size(), std::vector<std::array<double, 3>>(units_.front().size()));
    for (int k = 0; k < slices; ++k) {
      load(k, microbatch * slices + k);
      for (std::size_t u = 0; u < units_[index(k)].size(); ++u) times[index(k)][u][0] = forward(index(k), u);
    }
    for (std::size_t k = units_.size(); k-- > 0;) {
      for (std::size_t u = units_[k].size(); u-- > 0;) backward(k, u, times[k][u]);
    }
    return times;
  }

 private:
  void load(int slice, int microbatch) {
    const auto k = index(slice);
    Floats input(input_[k].size());
    Floats target(target_[k].size());
    model::load_input_rows(*data_, network_, 0, 0, microbatch, input);
    const auto last = static_cast<int>(units_[k].size()) - 1;
    if (!target.empty()) model::load_target_rows(*data_, network_, last, 0, microbatch, target);
    bench_.fill(input_[k], input);
    bench_.fill(target_[k], target);
  }

  /// Returns the keys and values of the first `count` slices of a unit; none where it has no slices.
  [[nodiscard]] std::vector<model::ConstMemory> keys_values(std::size_t u, std::size_t count) const {
    std::vector<model::ConstMemory> found;
    for (std::size_t k = 0; k < count && network_.slices.size() > 1; ++k)
      found.emplace_back(std::span<const float>(units_[k][u].keys_values));
    return found;
  }

  double forward(std::size_t k, std::size_t u) {
    UnitOnDevice& unit = units_[k][u];
    const std::array input = {model::ConstMemory(u == 0 ? input_[k] : units_[k][u - 1].output)};
    const auto target = unit.stage->is_sink() ? std::span<const float>(target_[k]) : std::span<const float>();
    const std::vector<model::ConstMemory> before = keys_values(u, k);
    return bench_.seconds([&] {
      unit.stage->forward(unit.parameters(), input, target, unit.output, unit.stash, unit.scratch,
                          bench_.backend(), {before, unit.keys_values});
    });
  }

  void add_units(const model::Network& network, int slice, std::size_t units, std::uint64_t seed) {
    std::vector<UnitOnDevice>& added = units_.emplace_back();
    for (std::size_t u = 0; u < units; ++u) {
      const model::Stage& stage = network.stage(static_cast<int>(u), slice);
      const std::vector<std::size_t> numbers = network.shared_sets(static_cast<int>(u));
      SharedOnDevice shared;
      for (std::size_t k = 0; k < numbers.size(); ++k) {
        auto& [weights, gradient] = sets_[numbers[k]];
        const auto& [name, parameters, size] = stage.shared()[k];
        if (weights.size() == 0) {
          const Floats initial = model::initial_parameters(parameters, seed);
          weights = BenchVector(bench_, model::rounded_weights(stage.precision(), initial));
          gradient = BenchVector(bench_, size);
        }
        shared.weights.emplace_back(weights);
        shared.gradients.emplace_back(gradient);
      }
      added.emplace_back(bench_, stage, std::move(shared), seed, slice == 0 ? nullptr : &units_.front()[u]);
    }
  }

  void backward(std::size_t k, std::size_t u, std::array<double, 3>& times) {
    UnitOnDevice& unit = units_[k][u];
    const bool last = u + 1 == units_[k].size();
    const model::ConstMemory after = last ? gradient_[k] : units_[k][u + 1].input_gradient;
    const std::vector<model::ConstMemory> seen = keys_values(u, k + 1);
    const auto handed_back = k + 1 < units_.size() ? std::span<const float>(units_[k + 1][u].earlier_gradient)
                                                   : std::span<const float>();
    const std::span output_gradients(&after, unit.stage->is_sink() ? 0 : 1);
    const model::Memory before = unit.input_gradient;
    const std::span input_gradients(&before, u == 0 ? 0 : 1);
    times[1] = bench_.seconds([&] {
      unit.stage->backward({.parameters = unit.parameters(),
                            .stash = unit.stash,
                            .output_gradients = output_gradients,
                            .loss_scale = loss_scale_,
                            .input_gradients = input_gradients,
                            .gradient_stash = unit.gradient_stash,
                            .scratch = unit.scratch,
                            .slice = {seen, handed_back, unit.earlier_gradient}},
                           bench_.backend());
    });
    times[2] = bench_.seconds([&] {
      unit.stage->backward_weights(unit.stash, unit.gradient_stash, unit.gradients(), unit.scratch,
                                   bench_.backend());
    });
  }

  const KernelBench& bench_;
  const model::Network& network_;
  std::unique_ptr<model::Dataset> data_;
  float loss_scale_;
  std::map<std::size_t, std::pair<BenchVector, BenchVector>> sets_;  // weights and gradient
  std::vector<std::vector<UnitOnDevice>> units_;                     // by slice
  std::vector<BenchVector> input_, target_, gradient_;
};

/// Returns the value below which the given share of the sorted values lies.
double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
}

plan::Durations at(const Samples& sorted, double share) {
  return {.F = quantile(sorted[0], share), .B = quantile(sorted[1], share), .W = quantile(sorted[2], share)};
}

/// Times of each unit, sorted.
struct UnitSamples {
  Samples whole;                ///< of all slices together
  std::vector<Samples> slices;  ///< of each; empty without slices
};

/// Measures all units on one device.
std::vector<UnitSamples> measure_on(const KernelBench& bench, const Config& config,
                                    const model::Network& network, std::size_t units, int repetitions) {
  TimedMicrobatch timed(bench, config, network, units);
  const std::size_t slices = network.slices.size();
  std::vector<UnitSamples> samples(units, {.whole = {}, .slices = std::vector<Samples>(slices)});
  for (int r = 0; r <= repetitions; ++r) {
    const PassTimes times = timed.repeat(r % config.training.microbatches.value_or(1));
    for (std::size_t u = 0; r > 0 && u < units; ++u) {
      for (std::size_t pass = 0; pass < 3; ++pass) {
        double all = 0;
        for (const auto& slice : times) all += slice[u][pass];
        samples[u].whole[pass].push_back(all);
        for (std::size_t k = 0; k < slices; ++k) samples[u].slices[k][pass].push_back(times[k][u][pass]);
      }
    }
  }
  for (UnitSamples& unit : samples) {
    for (std::vector<double>& pass : unit.whole) std::ranges::sort(pass);
    for (Samples& slice : unit.slices) {
      for (std::vector<double>& pass : slice) std::ranges::sort(pass);
    }
  }
  return samples;
}

/// Throws InputError if this process has no main memory for the data of all units, which are measured one
/// behind the other as they run.
void require_memory_of_units(const model::Network& network, std::size_t units) {
  std::uint64_t words = 0;
  const std::size_t slices = std::max<std::size_t>(1, network.slices.size());
  for (std::size_t u = 0; u < units; ++u) {
    for (std::size_t k = 0; k < slices; ++k) {
      const model::Stage& s = network.stage(static_cast<int>(u), static_cast<int>(k));
      if (k == 0) words += s.weights_size() + s.parameter_size();
      words += s.output_size() + s.stash_size() + s.gradient_stash_size() + s.input_size(0) +
               s.scratch_size() + s.keys_values_size() + s.earlier_gradient_size();
    }
  }
  const std::uint64_t need = memory_of_process("VmRSS") + words * sizeof(float);
  for (const MemoryLimit& limit : find_memory_limits()) {
    if (need <= limit.bytes) continue;
    const auto [needed, given] = bytes_texts(need, limit.bytes);
    throw InputError(fmt::format(
        "measuring the units takes {} of main memory, since all of them are there at once: more than {}, "
        "{}; schedule.profile takes times that were measured on another host",
        needed, limit.name, given));
  }
}

/// Returns the tokens of slices of equal times, by the times of all units on the first device.
std::vector<int> even_slices_of(const plan::Profile& profile) {
  const std::vector<int>& tokens = profile.slice_sizes;
  std::vector<double> times(tokens.size());
  for (const plan::UnitCosts& unit : profile.units) {
    for (std::size_t k = 0; k < times.size(); ++k) {
      for (const plan::PassTime& pass : plan::pass_times) times[k] += unit.slices.front()[k].*pass.time;
    }
  }
  return model::even_slices(std::accumulate(tokens.begin(), tokens.end(), 0), static_cast<int>(tokens.size()),
                            model::fit_work(tokens, times));
}

}  // namespace

std::vector<plan::SharedUnits> shared_units(const model::Network& by_unit) {
  std::vector<plan::SharedUnits> shared;
  for (const plan::SharedWeights& set : by_unit.shared_weights()) {
    const int first = set.stages.front();
    const std::vector<std::size_t> numbers = by_unit.shared_sets(first);
    const auto at = std::ranges::find(numbers, by_unit.stages.size() + shared.size());
    const auto k = static_cast<std::size_t>(at - numbers.begin());
    shared.push_back({.name = by_unit.stages[index(first)].shared()[k].name,
                      .units = set.stages,
                      .weights = set.weights,
                      .master = set.master});
  }
  return shared;
}

MeasuredUnits measure_units(const Config& config, int repetitions) {
  const OneProductThread as_in_a_worker;
  take_product_buffers(1);
  check_device(config);
  const std::vector<std::string> names = model::unit_names(config.model);
  const model::Network network =
      model::build_units(model_with_slices(config), config.training.microbatch_size);
  check_kernels(config, network);
  const std::vector<plan::StageSizes> sizes =
      model::build_units(config.model, config.training.microbatch_size).sizes();
  MeasuredUnits measured;
  measured.profile.shared = shared_units(network);
  for (const model::Piece::Range& slice : network.slice_rows)
    measured.profile.slice_sizes.push_back(static_cast<int>(slice.count));
  for (std::size_t u = 0; u < names.size(); ++u)
    measured.profile.units.push_back({.name = names[u], .sizes = sizes[u]});
  for (const std::string_view kind : device_kinds) {
    if (std::ranges::find(config.runtime.device, kind) == config.runtime.device.end()) continue;
    if (kind == cpu_device) require_memory_of_units(network, names.size());
    const std::unique_ptr<KernelBench> bench = make_kernel_bench(std::string(kind));
    const auto samples = measure_on(*bench, config, network, names.size(), repetitions);
    std::vector<plan::Durations>& spread = measured.spread.emplace_back();
    for (std::size_t u = 0; u < names.size(); ++u) {
      plan::UnitCosts& costs = measured.profile.units[u];
      (measured.profile.devices.empty() ? costs.time : costs.others.emplace_back()) =
          at(samples[u].whole, 0.5);
      if (!samples[u].slices.empty()) {
        std::vector<plan::Durations>& of_slices = costs.slices.emplace_back();
        for (const Samples& slice : samples[u].slices) of_slices.push_back(at(slice, 0.5));
      }
      const auto [low, high] = std::pair(at(samples[u].whole, 0.25), at(samples[u].whole, 0.75));
      plan::Durations& between = spread.emplace_back();
      for (const plan::PassTime& pass : plan::pass_times) {
        between.*pass.time = high.*pass.time - low.*pass.time;
      }
    }
    measured.profile.devices.emplace_back(kind);
  }
  if (!network.slices.empty()) measured.even_slices = even_slices_of(measured.profile);
  return measured;
}

}  // namespace starpipe::runtime
