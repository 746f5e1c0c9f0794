// SPDX-License-Identifier: Apache-2.0
// A partition request, tabulated; private to plan.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "starpipe/base/index.hpp"
#include "starpipe/plan/partition/partition.hpp"

namespace starpipe::plan::detail {

/// Units [begin, end) of the chain as a stage.
struct UnitRange {
  int begin;
  int end;
};

/// Cuts and the worker of each stage.
struct Stages {
  std::vector<int> cuts;
  std::vector<int> workers;
  [[nodiscard]] int size() const { return static_cast<int>(workers.size()); }
};

/// What the search for stages makes small.
enum class Goal : std::uint8_t {
  bottleneck,  ///< the largest load, within the memory limit
  memory,      ///< the largest memory, whatever the loads
};

/// The costs of any stage in O(1).
class PartitionProblem {
 public:
  /// Throws InputError for a request that makes no sense.
  explicit PartitionProblem(const PartitionRequest& request);

  [[nodiscard]] const PartitionRequest& request() const { return request_; }
  [[nodiscard]] int units() const { return static_cast<int>(request_.units.size()); }
  [[nodiscard]] int workers() const { return request_.workers; }
  [[nodiscard]] bool has_transfers() const { return has_transfers_; }

  /// F + B + W.
  [[nodiscard]] double time(UnitRange range, int worker) const {
    return difference(time_[index(kind(worker))], range);
  }
  /// Whether workers have different times.
  [[nodiscard]] bool is_mixed() const { return kinds() > 1; }
  [[nodiscard]] int kinds() const { return static_cast<int>(time_.size()); }
  /// Of a worker's device; equal kinds have equal times.
  [[nodiscard]] int kind(int worker) const { return is_mixed() ? request_.kinds[index(worker)] : 0; }
  /// How much a unit of this worker's time counts, beside `least_work`: whatever the units of a range are
  /// on, the times that they take there, each multiplied by its worker's weight, are at least so much. All 1
  /// where workers are alike.
  [[nodiscard]] double weight(int worker) const { return weight_[index(kind(worker))]; }
  [[nodiscard]] double least_work(UnitRange range) const { return difference(least_work_, range); }
  /// Of the activation that unit `boundary` reads, or of the gradient that the unit before it does.
  [[nodiscard]] double activation_transfer(int boundary) const { return activation_[index(boundary)]; }
  [[nodiscard]] double gradient_transfer(int boundary) const { return gradient_[index(boundary)]; }
  /// Bytes that a stage holds when `following` stages come after it.
  [[nodiscard]] double memory(UnitRange range, int following) const {
    return difference(weights_, range) + held(following) * difference(stash_, range);
  }
  [[nodiscard]] double held(int following) const;
  /// The least bytes that the units hold in any partition.
  [[nodiscard]] double least_memory(UnitRange range) const {
    return difference(weights_, range) + least_held_ * difference(stash_, range);
  }
  [[nodiscard]] bool fits(double memory) const { return memory <= request_.memory_limit * (1 + 1e-12); }

  /// No partition has a smaller largest load (or memory): the largest unit, and the mean over the workers,
  /// with the transfers that so many workers need.
  [[nodiscard]] double lower_bound(Goal goal) const;

  [[nodiscard]] UnitRange range(const Stages& stages, int stage) const;
  /// By worker.
  [[nodiscard]] std::vector<WorkerLoad> loads(const Stages& stages) const;

 private:
  void set_weights();
  [[nodiscard]] double bottleneck_bound() const;

  static double difference(const std::vector<double>& before, UnitRange range) {
    return before[index(range.end)] - before[index(range.begin)];
  }

  const PartitionRequest& request_;
  bool has_transfers_;
  double least_held_;
  // Sums over the units before.
  std::vector<std::vector<double>> time_;  // by kind
  std::vector<double> least_work_ = {0};
  std::vector<double> weight_;  // by kind
  std::vector<double> weights_ = {0};
  std::vector<double> stash_ = {0};
  // By boundary, the one before unit i being i; nothing moves at the ends of the chain.
  std::vector<double> activation_ = {0};
  std::vector<double> gradient_ = {0};
};

}  // namespace starpipe::plan::detail
