// SPDX-License-Identifier: Apache-2.0
// The report file of a run.
#pragma once

#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/host/rank_location.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/report/train_record.hpp"
#include "runtime/setup/experiment.hpp"
#include "runtime/setup/partition_choice.hpp"

namespace starpipe::runtime {

/// The beginning of every report: configuration, versions, machine, location of each rank,
/// time, and the partition if one was chosen. The configuration can be read again as one.
nlohmann::ordered_json report_head(const Config& config, const std::optional<PartitionChoice>& partition,
                                   const std::vector<RankLocation>& locations);

/// The report of a training run: configuration, versions, machine, losses, times, and the text offsets of the
/// first three steps. Makespan, bubble fraction, peak activations and transfers have a predicted and a
/// measured value. Times are in seconds; arrays have an element a worker. "explain" has what `starpipe
/// explain` reads, and the figures that it prints.
nlohmann::ordered_json make_report(const Config& config, const std::optional<PartitionChoice>& partition,
                                   const Experiment& experiment, const std::vector<RankLocation>& locations,
                                   const TrainRecord& record, const plan::ComparedRun& run,
                                   const Measurement& measurement);

}  // namespace starpipe::runtime
