// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "starpipe/model/network.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Costs by FLOPs, before anything is measured: F, B and W of a stage each last as long as its share of the
/// model's FLOPs, 1 for an average stage. Transfers take no time.
plan::Costs costs_by_flops(const model::Network& network);

/// Costs of jobs and transfers that `runtime.emulate` times. Throws InputError where the number of times is
/// neither 1 nor the number of stages, or with `per_share` the number of workers. `workers`: of the schedule,
/// shards included. In a network of shards, one time for all, or one for each whole stage, is divided among
/// the parts of a stage by their FLOPs; one time for each part is taken as it is. With `per_share`, all
/// stages divide the times by their FLOPs.
plan::Costs emulated_costs(const EmulationConfig& wanted, const model::Network& network, int workers);

/// The configuration with these durations in `runtime.emulate`, on workers without a kind of device.
/// `of_stages`: in seconds and without recomputation, one per stage or one for all.
Config with_emulated_times(Config config, std::span<const plan::Durations> of_stages);

/// The configuration of the same work under another named schedule.
struct OtherSchedule {
  Config config;
  /// Factor on the times of `runtime.emulate`, which are for a stage of the configured schedule: with
  /// twice as many stages a stage is half the work.
  double stage_share = 1;
};

/// A configuration for each of these schedules, with `schedule.name` set to it. Plug-ins that do not have the
/// schedule are dropped. An emulated time that is one for all stages is multiplied by `stage_share`. Every
/// other key is kept. Without `schedule.stages` each schedule has its own number of stages. Throws InputError
/// for `schedule.file`, for an unknown schedule and for one that is named twice, and where emulated times by
/// stage are given for another number of stages.
std::vector<OtherSchedule> with_schedules(const Config& config, const std::vector<std::string>& names);

}  // namespace starpipe::runtime
