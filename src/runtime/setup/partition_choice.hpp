// SPDX-License-Identifier: Apache-2.0
// The times of a model's units, measured or from a file, and the cuts that they decide.
#pragma once

#include <optional>
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
  /// Tokens of slices whose times would be equal, by the times of all units; empty without slices.
  std::vector<int> even_slices = {};
};

/// Returns the weights that the units of a model share. `by_unit`: the model with each unit as a stage.
std::vector<plan::SharedUnits> shared_units(const model::Network& by_unit);

/// Measures F, B and W of each unit of the model (of the first branch, where the model has several) on each
/// kind of device that `runtime.device` has. Real micro-batches run through the units, on one thread or on a
/// stream of the current GPU: one to warm up, then `repetitions` that count. On a GPU the measurement waits
/// for each pass, so a pass's time includes its launch. Needs no StarPU. Throws InputError as
/// `make_experiment` does for model and data, and for `cuda` without a GPU.
MeasuredUnits measure_units(const Config& config, int repetitions = 9);

/// Returns the number of slices whose times a profile has, if these are the configured slices; otherwise 1.
int measured_slices(const plan::Profile& profile, const Config& config);

/// The result of `schedule.partition: auto`: the stages, and the unit times that decided them.
struct PartitionChoice {
  plan::Profile profile;       ///< times of the units
  std::string profile_file;    ///< file of the times; empty if measured
  plan::Partition partition;   ///< of one branch if the network has several
  std::vector<int> placement;  ///< worker of each stage; empty where the schedule has its own
  /// By stage of `partition`: the kind of its device, an index of plan::Profile::devices.
  std::vector<int> stage_kinds;
};

/// Chooses cuts for a configuration with `schedule.partition: auto`, and a placement where the schedule takes
/// any and none is given. Returns nullopt for other configurations.
///
/// Units have the times of `Config::profile`, or are measured here when it has none. The load of each worker
/// counts all of its stages; a stage that several workers compute is balanced as if it had a worker of its
/// own. Of several placements (general, contiguous, loop, V) the placement with the shortest predicted run is
/// chosen. Throws InputError for a profile of another model, and as `make_experiment` does.
std::optional<PartitionChoice> choose_partition(const Config& config);

/// Returns the configuration of the same run with the chosen `schedule.cuts` and `schedule.placement`,
/// without `schedule.partition` and `schedule.profile`.
Config with_partition(Config config, const PartitionChoice& choice);

/// Does the same as `with_partition`, and puts the measured times of the stages into `runtime.emulate`.
/// Throws InputError for a network with branches, whose stages have no measured times.
Config with_measured_times(Config config, const PartitionChoice& choice);

/// Returns one line for people that ends in a newline; empty if nothing was chosen.
std::string describe_partition(const std::optional<PartitionChoice>& choice);

}  // namespace starpipe::runtime
