// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/simulate/transfers.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "plan/simulate/reductions.hpp"
#include "plan/simulate/stashes.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {
namespace {

void add(Received& received, std::uint64_t bytes) {
  ++received.count;
  received.bytes += bytes;
}

// The few workers that have one datum. Reused for the next datum, so that it rarely allocates.
class WorkerSet {
 public:
  // True if the worker is new in the set.
  bool insert(int worker) {
    if (std::ranges::find(workers_, worker) != workers_.end()) return false;
    workers_.push_back(worker);
    return true;
  }
  void clear() { workers_.clear(); }

 private:
  std::vector<int> workers_;
};

bool reads_weights(Pass pass) { return pass != Pass::W; }

// Calls f(from, to, kind, bytes) for each transfer of weights that several stages share, and of their
// gradient.
template <class Function>
void for_each_shared_transfer(const Schedule& schedule, const SharedWeights& weights, Function&& f) {
  const SharedHolders holders(schedule, schedule, weights.stages.front());
  std::set<std::pair<int, int>> fetched;  // holder, worker
  for (const JobId id : schedule.order()) {
    const Job job = schedule.job(id);
    if (!reads_weights(job.pass) || !std::ranges::binary_search(weights.stages, job.stage)) continue;
    if (holders.of(id) != schedule.compute(id)) fetched.emplace(holders.of(id), schedule.compute(id));
  }
  for (const auto& [holder, worker] : fetched) f(holder, worker, &Transfers::weights, weights.weights);
  for (const ReductionStep& step : reduction_plan(schedule, weights.stages))
    f(step.from, step.into, &Transfers::weight_gradients, weights.updated());
}

// Calls f(from, to, kind, bytes) for each transfer of a step; `kind` is a member of Transfers.
template <class Function>
void for_each_transfer(const Schedule& schedule, const Costs& costs, Function&& f) {
  WorkerSet seen;
  std::vector<std::tuple<int, int, int>> fetched;  // stage, holder, worker
  for (const JobId id : schedule.order()) {
    const Job job = schedule.job(id);
    const auto [holder, worker] = schedule.placement(id);
    if (reads_weights(job.pass) && holder != worker && costs.size(job.stage).has_weights) {
      const std::tuple fetch{job.stage, holder, worker};
      if (fetched.empty() || fetched.back() != fetch) fetched.push_back(fetch);
    }
    if (job.pass == Pass::F) {
      seen.clear();
      seen.insert(worker);
      for_each_output_reader(schedule, id, [&](JobId reader_id) {
        const int reader = schedule.compute(reader_id);
        if (seen.insert(reader)) f(worker, reader, &Transfers::activations, costs.size(job.stage).activation);
      });
      if (schedule.forward_only()) continue;
      const int maker = schedule.compute(schedule.stash_maker(job.stage, job.microbatch));
      seen.clear();
      seen.insert(maker);
      for (const JobId reader_id : {schedule.backward(job.stage, job.microbatch),
                                    schedule.weight_gradient(job.stage, job.microbatch)}) {
        const int reader = schedule.compute(reader_id);
        if (seen.insert(reader)) f(maker, reader, &Transfers::stashes, costs.size(job.stage).stash);
      }
    }
    if (job.pass == Pass::B || job.pass == Pass::BW) {
      seen.clear();
      for (const int previous : schedule.graph().pred(job.stage)) {
        const int reader = schedule.compute(schedule.backward(previous, job.microbatch));
        if (reader == worker || (costs.size(job.stage).adds_inputs && !seen.insert(reader))) continue;
        f(worker, reader, &Transfers::gradients, costs.size(previous).gradient);
      }
    }
    if (job.pass == Pass::B) {
      const int reader = schedule.compute(schedule.weight_gradient(job.stage, job.microbatch));
      if (reader != worker) f(worker, reader, &Transfers::stashes, costs.size(job.stage).gradient_stash);
    }
  }

  std::ranges::sort(fetched);
  const auto repeated = std::ranges::unique(fetched);
  fetched.erase(repeated.begin(), repeated.end());
  for (const auto& [stage, holder, worker] : fetched) {
    f(holder, worker, &Transfers::weights, costs.size(stage).weights);
  }
  for (int s = 0; s < schedule.stages(); ++s) {
    if (!costs.size(s).has_weights) continue;
    for (const ReductionStep& step : reduction_plan(schedule, s)) {
      f(step.from, step.into, &Transfers::weight_gradients, costs.size(s).updated());
    }
  }
  for (const SharedWeights& weights : costs.shared) for_each_shared_transfer(schedule, weights, f);
}

}  // namespace

Received Transfers::total() const {
  Received sum;
  for (const TransferKind& kind : transfer_kinds) {
    sum.count += (this->*kind.member).count;
    sum.bytes += (this->*kind.member).bytes;
  }
  return sum;
}

std::vector<Transfers> count_transfers(const Schedule& schedule, const Costs& costs) {
  std::vector<Transfers> received(index(schedule.workers()));
  for_each_transfer(schedule, costs, [&](int, int to, Received Transfers::*kind, std::uint64_t bytes) {
    add(received[index(to)].*kind, bytes);
  });
  return received;
}

std::vector<Traffic> count_traffic(const Schedule& schedule, const Costs& costs) {
  std::map<std::pair<int, int>, Received> sums;
  for_each_transfer(schedule, costs, [&](int from, int to, Received Transfers::*, std::uint64_t bytes) {
    add(sums[{from, to}], bytes);
  });
  std::vector<Traffic> traffic;
  for (const auto& [ends, sent] : sums) traffic.push_back({ends.first, ends.second, sent});
  return traffic;
}

}  // namespace starpipe::plan
