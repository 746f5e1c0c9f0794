// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/numbers.hpp"
#include "plan/search/partition.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::plan {

/// Units [begin, end) of the chain as a stage.
struct UnitRange {
  int begin;
  int end;
};

/// Value of a stage: its bytes, or its load.
struct StageValue {
  double value;
  double min;  ///< lower bound for the values of this stage and of all longer stages with the same first unit
};

/// Cuts and the worker of each stage.
struct Stages {
  std::vector<int> cuts;
  std::vector<int> workers;
  [[nodiscard]] int size() const { return static_cast<int>(workers.size()); }
};

/// The value that the search for stages minimizes.
enum class Goal : std::uint8_t {
  bottleneck,  ///< the largest load, within the memory limit
  memory,      ///< the largest memory of a worker, under any loads
};

/// A partition request with tables of prefix sums, so that the costs of any stage take O(1).
class PartitionProblem {
 public:
  /// Keeps a reference to `request`. Throws InputError for an invalid request.
  explicit PartitionProblem(const PartitionRequest& request);

  [[nodiscard]] const PartitionRequest& request() const { return request_; }
  [[nodiscard]] int units() const { return static_cast<int>(request_.units.size()); }
  [[nodiscard]] int workers() const { return request_.workers; }
  [[nodiscard]] bool has_transfers() const { return request_.links.takes_time(); }
  /// True if all pairs of workers have the same link.
  [[nodiscard]] bool has_one_link() const {
    const std::vector<plan::LinkLevel>& levels = request_.links.levels();
    return levels.empty() || (levels.size() == 1 && levels.front().ports.empty());
  }
  /// Returns a pair that is equal for workers with the same kind and the same links to all others.
  [[nodiscard]] std::pair<int, int> likeness(int worker) const {
    return {kind(worker), has_one_link() ? 0 : worker / request_.links.levels().front().workers};
  }

  /// Returns F + B + W of the units on the worker's device.
  [[nodiscard]] double time(UnitRange range, int worker) const {
    return difference(time_[index(kind(worker))], range);
  }
  /// True if workers are of several kinds. Workers of one kind have equal devices and equal memory limits.
  [[nodiscard]] bool is_mixed() const { return kinds() > 1; }
  [[nodiscard]] int kinds() const { return static_cast<int>(time_.size()); }
  /// Returns the kind of the worker, for tables that have one entry a kind.
  [[nodiscard]] int kind(int worker) const { return kind_[index(worker)]; }
  /// Returns the worker's speed relative to the other workers; 1 if all are of one kind.
  [[nodiscard]] double speed(int worker) const { return speed_[index(kind(worker))]; }
  /// Returns a lower bound of the sum of speed(w) * time over the units of a range, for any workers w of the
  /// units.
  [[nodiscard]] double min_work(UnitRange range) const { return difference(min_work_, range); }
  /// Returns the time of the transfer of the activation that unit `boundary` reads, and of the gradient that
  /// the unit before it reads, from one worker to another. 0 at the ends of the chain.
  [[nodiscard]] double activation_transfer(int boundary, int from, int to) const {
    return transfer(activation_, boundary, request_.links.between(from, to));
  }
  [[nodiscard]] double gradient_transfer(int boundary, int from, int to) const {
    return transfer(gradient_, boundary, request_.links.between(from, to));
  }
  /// Returns the shortest time that both take, between any two workers.
  [[nodiscard]] double min_transfers(int boundary) const {
    const Link link = request_.links.cheapest();
    return transfer(activation_, boundary, link) + transfer(gradient_, boundary, link);
  }
  /// Returns the bytes that a stage holds when `following` stages come after it. Shared weights are left out.
  [[nodiscard]] double memory(UnitRange range, int following) const {
    return difference(weights_, range) + held(following) * difference(stash_, range);
  }
  /// Returns the same with shared weights, for a worker that has no other stage.
  [[nodiscard]] StageValue memory_alone(UnitRange range, int following) const;
  /// Returns the bytes of shared weights that `unit` adds to the memory of its worker. All later units are
  /// placed already, perhaps on the same worker. `owners`: the worker of each unit, from `unit` on.
  [[nodiscard]] double shared_memory(int unit, const std::vector<int>& owners) const;
  /// Returns the number of stashes that a stage holds when `following` stages come after it.
  [[nodiscard]] double held(int following) const;
  /// Returns a lower bound of the bytes that the units need in any partition.
  [[nodiscard]] double min_memory(UnitRange range) const {
    return difference(weights_, range) + min_held_ * difference(stash_, range);
  }
  /// Returns the bytes that the worker may hold.
  [[nodiscard]] double limit(int worker) const { return limit_[index(kind(worker))]; }
  [[nodiscard]] bool has_limit() const;
  [[nodiscard]] bool fits(int worker, double memory) const { return memory <= limit(worker) * (1 + 1e-12); }

  /// Returns a bound: no partition has a smaller bottleneck (or largest memory). It is the larger of the
  /// largest unit and the mean over the workers, with the transfers that this number of workers needs.
  [[nodiscard]] double lower_bound(Goal goal) const;

  /// Returns the units of one of the stages.
  [[nodiscard]] UnitRange range(const Stages& stages, int stage) const;
  /// Returns the load of each worker.
  [[nodiscard]] std::vector<WorkerLoad> loads(const Stages& stages) const;

 private:
  /// Memory of a set of shared weights.
  struct SharedBytes {
    double alone;     ///< on the worker of its first unit, when no other worker has one of its units
    double received;  ///< there too, when another worker has one: a gradient that arrives
    double copy;      ///< on every other worker
  };
  [[nodiscard]] SharedBytes bytes_of(const SharedUnits& set) const;
  /// Returns the bytes that unit set.units[member] adds to the memory of its worker, after all later units of
  /// the set. `owner(unit)`: the worker of a unit.
  template <class Owner>
  [[nodiscard]] double added_by(const SharedUnits& set, std::size_t member, Owner owner) const;
  void set_kinds();
  void set_speeds();
  [[nodiscard]] double bottleneck_bound() const;

  [[nodiscard]] double transfer(const std::vector<std::uint64_t>& bytes, int boundary,
                                const Link& link) const {
    return boundary == 0 || boundary == units() ? 0 : link.time(bytes[index(boundary)]);
  }
  static double difference(const std::vector<double>& before, UnitRange range) {
    return before[index(range.end)] - before[index(range.begin)];
  }

  const PartitionRequest& request_;
  double min_held_;
  // Prefix sums: entry i is the sum over units 0 to i - 1.
  std::vector<int> kind_;                  // by worker
  std::vector<double> limit_;              // [kind]
  std::vector<std::vector<double>> time_;  // [kind][i]
  std::vector<double> min_work_ = {0};
  std::vector<double> weights_ = {0};  // bytes: weights, gradient, optimizer state
  std::vector<double> stash_ = {0};
  std::vector<double> speed_;  // [kind]
  // Bytes of transfers. Entry i is for the boundary before unit i.
  std::vector<std::uint64_t> activation_ = {0};
  std::vector<std::uint64_t> gradient_ = {0};
};

struct BestStages {
  std::optional<Stages> stages;  ///< empty: none found within the memory limit
  bool proven = false;           ///< no stages are better, or none exist within the limit
};

/// Returns the best stages for workers that may have several: placed by the request's `stage_workers`, or
/// anywhere in a general allocation. Ends after the request's `steps`; deterministic.
BestStages branch_and_bound(const PartitionProblem& problem, Goal goal);

/// Returns the largest load or memory of a worker.
double value_of(const PartitionProblem& problem, Goal goal, const Stages& stages);

/// Returns the stages from the worker of each unit: neighbouring units on one worker are one stage.
Stages stages_of(const std::vector<int>& owner);

/// Returns a good partition to start from: the better of the contiguous optimum and a greedy partition, both
/// improved. For general allocations an improvement moves a unit or swaps two, for placed stages it moves
/// cuts. Returns nullopt if no partition found is within the memory limit. The work is bounded.
std::optional<Stages> local_search(const PartitionProblem& problem, Goal goal);

/// Repeats random changes and improvements of the best partition so far, from `start` on. The result is at
/// least as good as `start`; nullopt without `start`. The work is bounded. Deterministic.
std::optional<Stages> iterated_local_search(const PartitionProblem& problem, Goal goal,
                                            std::optional<Stages> start);

/// Returns the best stages with at most one stage per worker, by dynamic programming; of equal optima the one
/// with the smallest sum of squared loads. The request's `stage_workers` gives the stages; without
/// `stage_workers`, at most `max` stages on workers in ascending order. Returns nullopt if no stages are
/// within the memory limit.
std::optional<Stages> one_stage_each(const PartitionProblem& problem, int max, Goal goal);

}  // namespace starpipe::plan
