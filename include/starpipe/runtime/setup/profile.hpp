// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "starpipe/plan/partition/partition.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// Layers' costs as measured, and how much they varied.
struct MeasuredLayers {
  plan::Profile profile;                             ///< medians in seconds, sizes in bytes
  std::vector<std::vector<plan::Durations>> spread;  ///< interquartile ranges, seconds, by device and layer
};

/// Measures F, B and W of each unit of the model (what `schedule.cuts` counts; with legs > 1 those of the
/// first leg) on each kind of device that `runtime.device` has: real micro-batches run through the units, on
/// one thread, or on a stream of the current GPU, `repetitions` times after one that warms up. On a GPU each
/// pass is waited for, so it has the time of its launch in it. Needs no StarPU. Throws InputError as
/// `make_experiment` does for model and data, and where there is no GPU for `cuda`.
MeasuredLayers measure_layers(const Config& config, int repetitions = 9);

}  // namespace starpipe::runtime
