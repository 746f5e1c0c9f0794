// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/reductions.hpp"

#include <algorithm>
#include <set>

namespace starpipe::plan {

std::vector<int> weight_holders(const Schedule& schedule, int stage) {
  std::set<int> holders;
  for (int b = 0; b < schedule.microbatches(); ++b) {
    holders.insert(schedule.placement(schedule.forward(stage, b)).weights);
    if (schedule.forward_only()) continue;
    for (const JobId id : {schedule.backward(stage, b), schedule.weight_gradient(stage, b)}) {
      holders.insert(schedule.placement(id).weights);
    }
  }
  return {holders.begin(), holders.end()};
}

std::vector<int> gradient_workers(const Schedule& schedule, int stage) {
  return gradient_workers(schedule, std::span(&stage, 1));
}

std::vector<int> gradient_workers(const Schedule& schedule, std::span<const int> stages) {
  std::set<int> workers;
  for (const int stage : stages) {
    for (int b = 0; !schedule.forward_only() && b < schedule.microbatches(); ++b)
      workers.insert(schedule.compute(schedule.weight_gradient(stage, b)));
  }
  return {workers.begin(), workers.end()};
}

std::vector<ReductionStep> reduction_plan(const Schedule& schedule, int stage) {
  return reduction_plan(schedule, std::span(&stage, 1));
}

std::vector<ReductionStep> reduction_plan(const Schedule& schedule, std::span<const int> stages) {
  if (schedule.forward_only()) return {};
  const int stage = stages.front();
  const auto holders = weight_holders(schedule, stage);
  std::vector<int> tree = {holders.front()};
  for (const int worker : gradient_workers(schedule, stages)) {
    if (worker != holders.front()) tree.push_back(worker);
  }
  std::vector<ReductionStep> steps;
  for (std::size_t stride = 1; stride < tree.size(); stride *= 2) {
    for (std::size_t i = 0; i + stride < tree.size(); i += 2 * stride) {
      steps.push_back({stage, tree[i + stride], tree[i], false});
    }
  }
  for (std::size_t h = 1; h < holders.size(); ++h)
    steps.push_back({stage, holders.front(), holders[h], true});
  return steps;
}

SharedHolders::SharedHolders(const Schedule& schedule, const Schedule& training, int first_stage)
    : schedule_(schedule), first_stage_(first_stage), holders_(weight_holders(training, first_stage)) {}

int SharedHolders::of(JobId id) const {
  const int worker = schedule_.compute(id);
  if (std::ranges::binary_search(holders_, worker)) return worker;
  return schedule_.placement(schedule_.forward(first_stage_, schedule_.job(id).microbatch)).weights;
}

}  // namespace starpipe::plan
