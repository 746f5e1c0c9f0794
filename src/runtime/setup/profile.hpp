// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "plan/search/partition.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Measured costs of the units of a model, and how much they varied.
struct MeasuredUnits {
  plan::Profile profile;                             ///< medians in seconds, sizes in bytes
  std::vector<std::vector<plan::Durations>> spread;  ///< interquartile ranges in seconds, by device and unit
};

/// Returns the weights that the units of a model share. `by_unit`: the model with each unit as a stage.
std::vector<plan::SharedUnits> shared_units(const model::Network& by_unit);

/// Measures F, B and W of each unit of the model (of the first branch, where the model has several) on each
/// kind of device that `runtime.device` has. Real micro-batches run through the units, on one thread or on a
/// stream of the current GPU: one to warm up, then `repetitions` that count. On a GPU the measurement waits
/// for each pass, so a pass's time includes its launch. Needs no StarPU. Throws InputError as
/// `make_experiment` does for model and data, and for `cuda` without a GPU.
MeasuredUnits measure_units(const Config& config, int repetitions = 9);

}  // namespace starpipe::runtime
