// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "starpipe/model/network.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Costs by FLOPs, before anything is measured: F, B and W of a stage each last as long as its share of the
/// model's FLOPs, 1 for an average stage. Transfers take no time.
plan::Costs costs_by_flops(const model::Network& network);

/// Costs of jobs and transfers that `runtime.emulate` times. Throws InputError where the number of times is
/// neither 1 nor the number of stages, or with `per_share` the number of workers. `workers`: of the schedule,
/// shards included. With `per_share`, the stages of a network of shards divide the times by their FLOPs.
plan::Costs emulated_costs(const EmulationConfig& wanted, const model::Network& network, int workers);

/// How many stages of the network have a time of their own in `runtime.emulate` without `per_share`: all
/// shards, but shards of the vocabulary have parts of the times of whole stages. A time that is one for all
/// stages gives the same work in all when it is divided by this number.
double emulated_stages(const model::Network& network);

/// The configuration with these durations in `runtime.emulate`, on workers without a kind of device.
/// `of_stages`: in seconds and without recomputation, one a stage or one for all.
Config with_emulated_times(Config config, std::span<const plan::Durations> of_stages);

}  // namespace starpipe::runtime
