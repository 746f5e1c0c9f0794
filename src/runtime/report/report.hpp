// SPDX-License-Identifier: Apache-2.0
// The report file of a run.
#pragma once

#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/report/measurement.hpp"
#include "runtime/report/train_record.hpp"
#include "runtime/session/rank_location.hpp"
#include "starpipe/runtime/setup/experiment.hpp"

namespace starpipe::runtime {

/// What every report starts with: configuration, versions, machine, where each rank ran, time.
nlohmann::ordered_json report_head(const Config& config, const std::vector<RankLocation>& locations);

/// The report: configuration, versions, machine, losses, times, text offsets of the first three steps, and
/// for makespan, bubble fraction, peak activations and transfers the predicted beside the measured value.
/// Times in seconds, arrays by worker.
nlohmann::ordered_json make_report(const Config& config, const Experiment& experiment,
                                   const std::vector<RankLocation>& locations, const TrainRecord& record,
                                   const plan::Timeline& predicted, const MeasuredRun& measured,
                                   const Measurement& measurement);

}  // namespace starpipe::runtime
