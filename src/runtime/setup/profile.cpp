// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/setup/profile.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include <cblas.h>

#include "runtime/setup/gpu_checks.hpp"
#include "runtime/setup/kernel_bench.hpp"
#include "starpipe/model/weights.hpp"

namespace starpipe::runtime {
namespace {

using Floats = std::vector<float>;

/// A network cut into its units: of a tree, the stages of the first leg are they.
model::Network units_of(const Config& config, std::size_t units) {
  const int legs = config.model.legs;
  const auto count = static_cast<int>(units);
  return model::build_network(config.model, config.training.microbatch_size,
                              legs > 1 ? legs * count + 1 : count);
}

/// Times of the three passes of one unit, by repetition.
using Samples = std::array<std::vector<double>, 3>;

/// One unit with all its data.
struct Unit {
  Unit(const ProfileDevice& device, const model::Stage& s, std::uint64_t seed)
      : stage(&s),
        weights(device, model::rounded_weights(s, model::initial_parameters(s, seed))),
        output(device, s.is_sink() ? 1 : s.output_size()),
        stash(device, s.stash_size()),
        gradient_stash(device, s.gradient_stash_size()),
        input_gradient(device, s.input_size(0)),
        parameter_gradient(device, s.parameter_size()),
        scratch(device, s.scratch_size(device.is_gpu())) {}

  const model::Stage* stage;
  DeviceVector weights, output, stash, gradient_stash, input_gradient, parameter_gradient, scratch;
};

template <class Function>
double seconds(const ProfileDevice& device, Function&& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  device.wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// F through all units, then B and W back.
class Run {
 public:
  Run(const ProfileDevice& device, const Config& config, const model::Network& network, std::size_t units)
      : device_(device),
        data_(model::make_dataset(config.data, config.model, config.training.microbatch_size,
                                  config.training.seed)),
        loss_scale_(1.0F / static_cast<float>(config.training.microbatches.value_or(1))) {
    for (std::size_t u = 0; u < units; ++u)
      units_.emplace_back(device, network.stages[u], config.training.seed);
    const model::Stage& first = *units_.front().stage;
    const model::Stage& last = *units_.back().stage;
    host_input_.resize(first.input_size(0));
    host_target_.resize(last.rows() * last.target_columns());
    input_ = DeviceVector(device, host_input_.size());
    target_ = DeviceVector(device, host_target_.size());
    gradient_ = DeviceVector(device, Floats(last.output_size(), 1.0F));  // a number in any precision
  }

  /// Returns the times by unit and pass.
  std::vector<std::array<double, 3>> repeat(int microbatch) {
    model::load_input(*data_, *units_.front().stage, 0, microbatch, 0, host_input_);
    if (!host_target_.empty()) data_->target(0, microbatch, host_target_);
    device_.fill(input_, host_input_);
    device_.fill(target_, host_target_);
    std::vector<std::array<double, 3>> times(units_.size());
    for (std::size_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      const std::array input = {model::ConstMemory(u == 0 ? input_ : units_[u - 1].output)};
      const auto target = unit.stage->is_sink() ? std::span<const float>(target_) : std::span<const float>();
      times[u][0] = seconds(device_, [&] {
        unit.stage->forward(unit.weights, input, target, unit.output, unit.stash, unit.scratch,
                            device_.backend());
      });
    }
    for (std::size_t u = units_.size(); u-- > 0;) backward(u, times[u]);
    return times;
  }

 private:
  void backward(std::size_t u, std::array<double, 3>& times) {
    Unit& unit = units_[u];
    const bool last = u + 1 == units_.size();
    const model::ConstMemory after = last ? gradient_ : units_[u + 1].input_gradient;
    const std::span output_gradients(&after, unit.stage->is_sink() ? 0 : 1);
    const model::Memory before = unit.input_gradient;
    const std::span input_gradients(&before, u == 0 ? 0 : 1);
    times[1] = seconds(device_, [&] {
      unit.stage->backward_input(unit.weights, unit.stash, output_gradients, loss_scale_, input_gradients,
                                 unit.gradient_stash, unit.scratch, device_.backend());
    });
    times[2] = seconds(device_, [&] {
      unit.stage->backward_weights(unit.stash, unit.gradient_stash, unit.parameter_gradient, unit.scratch,
                                   device_.backend());
    });
  }

  const ProfileDevice& device_;
  std::unique_ptr<model::Dataset> data_;
  float loss_scale_;
  std::vector<Unit> units_;
  Floats host_input_, host_target_;
  DeviceVector input_, target_, gradient_;
};

/// The value that a share of the sorted ones is below.
double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(std::lround(share * static_cast<double>(sorted.size() - 1)))];
}

plan::Durations at(const Samples& sorted, double share) {
  return {.F = quantile(sorted[0], share), .B = quantile(sorted[1], share), .W = quantile(sorted[2], share)};
}

/// Sorted times, by unit.
std::vector<Samples> measure_on(const ProfileDevice& device, const Config& config,
                                const model::Network& network, std::size_t units, int repetitions) {
  Run run(device, config, network, units);
  std::vector<Samples> samples(units);
  for (int r = 0; r <= repetitions; ++r) {
    const auto times = run.repeat(r % config.training.microbatches.value_or(1));
    for (std::size_t u = 0; r > 0 && u < units; ++u) {
      for (std::size_t pass = 0; pass < 3; ++pass) samples[u][pass].push_back(times[u][pass]);
    }
  }
  for (Samples& unit : samples) {
    for (std::vector<double>& pass : unit) std::ranges::sort(pass);
  }
  return samples;
}

}  // namespace

MeasuredLayers measure_layers(const Config& config, int repetitions) {
  openblas_set_num_threads(1);  // as a worker
  check_device(config);
  const std::vector<std::string> names = model::unit_names(config.model);
  const model::Network network = units_of(config, names.size());
  check_kernels(config, network);
  const std::vector<plan::StageSizes> sizes = network.sizes();
  MeasuredLayers measured;
  for (std::size_t u = 0; u < names.size(); ++u)
    measured.profile.units.push_back({.name = names[u], .sizes = sizes[u]});
  for (const char* kind : {"cpu", "cuda"}) {
    if (std::ranges::find(config.runtime.device, kind) == config.runtime.device.end()) continue;
    const std::unique_ptr<ProfileDevice> device = make_profile_device(kind);
    const auto samples = measure_on(*device, config, network, names.size(), repetitions);
    std::vector<plan::Durations>& spread = measured.spread.emplace_back();
    for (std::size_t u = 0; u < names.size(); ++u) {
      plan::UnitCosts& costs = measured.profile.units[u];
      (measured.profile.devices.empty() ? costs.time : costs.others.emplace_back()) = at(samples[u], 0.5);
      const auto [low, high] = std::pair(at(samples[u], 0.25), at(samples[u], 0.75));
      spread.push_back({.F = high.F - low.F, .B = high.B - low.B, .W = high.W - low.W});
    }
    measured.profile.devices.emplace_back(kind);
  }
  return measured;
}

}  // namespace starpipe::runtime
