// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/explain/compared_run.hpp"
#include "plan/explain/recorded_step.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::plan {

/// Returns the value of "explain" in a report, from which `starpipe explain` reads a run: "version", the
/// numbers of the compared steps, the parts of each step's difference, and in "record" the median step.
/// docs/explain.md describes the format. Times are whole nanoseconds. Times of jobs count from the first
/// start, in arrays with one entry per job in the order of n. Callers include <nlohmann/json.hpp>.
nlohmann::ordered_json compared_run_json(const ComparedRun& run);

/// Reads "explain" of a report. All figures belong to the run that was written. Throws InputError, naming
/// `source_name` and the key at fault, for a report without it, of another version, or with numbers that no
/// run has.
ComparedRun compared_run_from_json(std::string_view text, const std::string& source_name);

/// The median run of a schedule under a policy.
struct PolicyRun {
  std::string policy;
  Costs costs;  ///< of its prediction
  RecordedStep step;
};

/// Returns the value of "record" of a policy: as in a report (docs/explain.md), without "work". Callers
/// include <nlohmann/json.hpp>.
nlohmann::ordered_json policy_record_json(const RecordedStep& step, const Costs& costs);

/// Reads the file that `compare --output` wrote: for each schedule, its policies in the order of the file; at
/// least one. Throws InputError, naming `source_name` and the key at fault, for a file without records, and
/// with numbers that no run has.
std::vector<std::vector<PolicyRun>> compared_policies_from_json(std::string_view text,
                                                                const std::string& source_name);

}  // namespace starpipe::plan
