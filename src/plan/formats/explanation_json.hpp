// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include <nlohmann/json_fwd.hpp>

#include "plan/explain/compared_run.hpp"
#include "plan/formats/what_if_answers.hpp"

namespace starpipe::plan {

/// The same figures as the tables of `explanation.hpp`, complete, as an object: "idle" and "busy" (predicted
/// and measured, by worker), "waited_for", "waited_for_transfers", "critical_path", "kernels" and "links".
/// Times in whole nanoseconds; idle and busy times of a worker add up to the makespan. Callers include
/// <nlohmann/json.hpp>.
nlohmann::ordered_json explanation_json(const ComparedRun& run);

/// The output of `explain --json`: the same with the run's numbers, without its record, and with the answers
/// to --what-if.
nlohmann::ordered_json explain_json(const ComparedRun& run, std::span<const Answer> all);

}  // namespace starpipe::plan
