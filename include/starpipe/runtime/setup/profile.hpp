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

/// `schedule.partition: auto`: sets `schedule.cuts` for the stages that the schedule has, and
/// `schedule.placement` where the schedule lets one choose and none is given, by the times of
/// `schedule.profile`, which it measures where there are none. Notes its choice in `schedule.chosen`.
///
/// The load of each worker counts all of its stages; a stage that several workers compute is balanced as if
/// it had a worker of its own. Of several placements (general, contiguous, loop, V) the one whose run is
/// predicted to be the shortest is taken. Throws InputError for a profile that is not of this model, and as
/// `make_experiment`.
void choose_partition(Config& config);

/// By stage: the kind of its device in `schedule.profile`, where `choose_partition` put it.
std::vector<int> stage_kinds(const Config& config);

/// What was chosen, one line for people, ending in a newline; empty when nothing was.
std::string describe_partition(const Config& config);

}  // namespace starpipe::runtime
