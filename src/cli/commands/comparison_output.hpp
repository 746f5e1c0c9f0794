// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "plan/explain/recorded_step.hpp"
#include "runtime/api/compare.hpp"

namespace starpipe::cli {

/// The times that `simulate` predicts for a compared schedule.
struct ComparisonPrediction {
  plan::RecordedStep first;       ///< with the durations that were measured under the first policy
  std::vector<double> makespans;  ///< by policy, each with the durations measured under this policy; seconds
};

/// The texts that `compare` prints and writes, on rank 0. The references must outlive it.
class ComparisonOutput {
 public:
  /// Predicts each schedule: O(jobs log jobs) for each policy.
  ComparisonOutput(const runtime::Comparison& comparison,
                   const std::vector<runtime::ComparedSchedule>& schedules);

  /// Returns a heading, a row for each schedule and policy, and what the columns mean.
  [[nodiscard]] std::string table() const;
  [[nodiscard]] std::string json() const;
  /// Returns the same JSON with the jobs of each policy's median run, which `report` reads.
  [[nodiscard]] std::string json_with_jobs() const;
  /// Returns an HTML page with the prediction and the median runs.
  [[nodiscard]] std::string page() const;
  /// Returns an SVG of the prediction and the median runs.
  [[nodiscard]] std::string timeline() const;

 private:
  [[nodiscard]] std::string text_of(const nlohmann::ordered_json& reports) const;

  const runtime::Comparison& comparison_;
  const std::vector<runtime::ComparedSchedule>& schedules_;
  std::vector<ComparisonPrediction> predictions_;  // of each schedule
  nlohmann::ordered_json reports_ = nlohmann::ordered_json::array();
};

}  // namespace starpipe::cli
