// SPDX-License-Identifier: Apache-2.0
// Why the measured makespan of a run differs from the predicted one, for people.
#pragma once

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "plan/explain/compared_run.hpp"
#include "plan/formats/what_if_answers.hpp"

namespace starpipe::plan {

/// Returns a table from the predicted to the median step's makespan, one part per line, with the range of
/// each part over the compared steps. The figures shown add up to the last digit.
std::string difference_table(const ComparedRun& run);

/// Returns, for each worker, the shares of a step in which it computed and was idle, by cause, predicted and
/// measured; and the jobs and the transfer that workers waited for longest.
std::string idle_table(const ComparedRun& run);

/// Returns these two as `explain` prints them, with tables of the median step's critical path, slowest
/// kernels and slowest links, and the answers to --what-if at the end.
std::string explanation_text(const ComparedRun& run, std::span<const Answer> all);

/// Returns the figures of these tables, complete, as an object: "idle" and "busy" (predicted and measured, by
/// worker), "waited_for", "waited_for_transfers", "critical_path", "kernels" and "links". Times in whole
/// nanoseconds; idle and busy times of a worker add up to the makespan. Callers include <nlohmann/json.hpp>.
nlohmann::ordered_json explanation_json(const ComparedRun& run);

/// Returns the output of `explain --json`: the same with the run's numbers, without its record, and with the
/// answers to --what-if.
nlohmann::ordered_json explain_json(const ComparedRun& run, std::span<const Answer> all);

}  // namespace starpipe::plan
