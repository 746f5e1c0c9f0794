// SPDX-License-Identifier: Apache-2.0
// A small training for tests of the library: an mlp of two stages, and data of a class of its own.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "starpipe/starpipe.hpp"
#include "support/config.hpp"
#include "support/networks.hpp"

namespace starpipe {

inline constexpr int columns = 4;

inline Config mlp(int steps = 4) {
  Config config =
      config_of(small("mlp", {{"hidden", 8}, {"inputs", columns}, {"outputs", 2}}), "1f1b", 2, 4, 3);
  config.training.steps = steps;
  config.runtime.workers_per_core = 16;
  return config;
}

/// The two functions of a pipeline: stage s on worker s, oldest micro-batch first, backward passes first.
inline plan::Schedule pipeline(int microbatches = 4) {
  return make_schedule(
      {.stages = 2, .workers = 2, .microbatches = microbatches},
      [](int s, int /*b*/, plan::Pass /*d*/) { return s; },
      [](int /*s*/, int b, plan::Pass d) { return d == plan::Pass::F ? 100 + b : b; });
}

/// Points on a circle, and whether they are right of its centre. Throws in step 1 if it `breaks`: InputError,
/// or std::runtime_error.
class Circle : public model::Dataset {
 public:
  explicit Circle(bool breaks = false, bool with_input_error = true)
      : breaks_(breaks), with_input_error_(with_input_error) {}
  void input(int step, int microbatch, int /*branch*/, std::span<float> out) const override {
    if (breaks_ && step == 1 && with_input_error_) throw InputError("circle.txt: is cut off");
    if (breaks_ && step == 1) throw std::runtime_error("no circle");
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = std::sin(static_cast<float>(i + 7 * static_cast<std::size_t>(step * 4 + microbatch)));
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<float>((step + microbatch) % 2) - 0.5F + static_cast<float>(i % 2);
  }
  std::vector<std::uint64_t> offsets(int /*step*/, int /*microbatch*/) const override { return {}; }
  std::string sample_word() const override { return "points"; }
  std::size_t samples_per_microbatch() const override { return 3; }

 private:
  bool breaks_;
  bool with_input_error_;
};

inline std::vector<double> losses_of(Trainer& trainer, int steps) {
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) losses.push_back(trainer.step().loss.value());
  return losses;
}

}  // namespace starpipe
