// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/model/network.hpp"
#include "starpipe/plan/simulate/costs.hpp"
#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// Costs before anything is measured: F, B and W of a stage each last its share of the model's FLOPs, those
/// of an average stage 1; transfers take no time.
plan::Costs costs_by_flops(const model::Network& network);

/// Costs of jobs and transfers that `runtime.emulate` times. Throws InputError where the number of times is
/// neither 1 nor the number of stages.
plan::Costs emulated_costs(const EmulationConfig& wanted, const model::Network& network);

}  // namespace starpipe::runtime
