// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/explain/compared_run.hpp"

namespace starpipe::runtime {

/// The same figures as the tables of `explanation.hpp`, complete, as an object: "idle" and "busy" (predicted
/// and measured, by worker), "waited_for", "waited_for_transfers", "critical_path", "kernels" and "links".
/// Times in whole nanoseconds; idle and busy times of a worker add up to the makespan. Callers include
/// <nlohmann/json.hpp>.
nlohmann::ordered_json explanation_json(const plan::ComparedRun& run);

}  // namespace starpipe::runtime
