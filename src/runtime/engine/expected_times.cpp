// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/expected_times.hpp"

#include <limits>

#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

ExpectedTimes::ExpectedTimes(const plan::Schedule& schedule, const plan::Costs* known)
    : schedule_(schedule),
      is_known_(known != nullptr),
      expected_(index(schedule.stages()) * plan::pass_count, std::numeric_limits<double>::quiet_NaN()) {
  if (!is_known_) return;
  for (const plan::JobId job : schedule.order()) {
    const plan::Job of = schedule.job(job);
    expected_[position(job)] = known->duration(of.stage).of(of.pass) * 1e6;
  }
}

std::size_t ExpectedTimes::position(plan::JobId job) const {
  const plan::Job of = schedule_.job(job);
  return index(of.stage) * plan::pass_count + index(of.pass);
}

void ExpectedTimes::learn(std::span<const JobRecord> jobs) {
  if (is_known_) return;
  std::vector<double> sums(expected_.size(), 0);
  std::vector<int> counts(expected_.size(), 0);
  for (const JobRecord& record : jobs) {
    const std::size_t at = position(record.job);
    sums[at] += (record.end - record.start) * 1e6;
    ++counts[at];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) expected_[i] = sums[i] / counts[i];
  }
}

}  // namespace starpipe::runtime
