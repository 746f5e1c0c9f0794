// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::plan {

/// One message in the reduction of a stage's weight gradient. `from` sends a segment of its present sum, and
/// `into` adds the segment to its own sum. A finished segment is the sum of all contributions, and replaces
/// the numbers of `into`.
struct ReductionStep {
  int stage = 0;
  int round = 0;  ///< a worker sends what it has when it has all that the rounds before bring to it
  int from = 0;
  int into = 0;
  bool finished = false;
  std::uint64_t first = 0;  ///< the segment is these bytes of the gradient: [first, first + bytes)
  std::uint64_t bytes = 0;
  friend bool operator==(const ReductionStep&, const ReductionStep&) = default;
};

/// Returns the steps that reduce the weight gradient of `stage`, of `bytes` bytes, from its gradient workers
/// to every holder of its weights, by rounds. Empty where one worker is the only gradient worker and the only
/// holder.
///
/// Each number is summed along a binary tree, whose leaves are the first holder and then the other gradient
/// workers, ascending. The tree follows from w alone, so sums are reproducible. Where both halves of a tree
/// have holders, their workers exchange segments, and each adds up a part of the gradient: recursive halving.
/// Then the finished segments go back the same way: recursive doubling (Thakur, Rabenseifner and Gropp,
/// Optimization of Collective Communication Operations in MPICH, 2005, section 4.5). So a port carries twice
/// (P - 1) / P of the gradient in each direction where P, a power of 2, workers are holders. Neighbours
/// exchange the large segments: the workers of a host with each other. A half without holders gives all that
/// it has to the other half. A holder that adds nothing gets the whole gradient in the last round.
///
/// Segments begin at a multiple of 4 bytes. `bytes` is 0 where the size is not known. Then the steps are
/// those of a large gradient, and have 0 bytes.
std::vector<ReductionStep> reduction_plan(const Schedule& schedule, int stage, std::uint64_t bytes);

/// Returns the workers that hold the weights of `stage` for any of its jobs, ascending.
std::vector<int> weight_holders(const Schedule& schedule, int stage);

/// Returns the workers that run W or BW of `stage`, and so accumulate its weight gradient, ascending.
std::vector<int> gradient_workers(const Schedule& schedule, int stage);

/// The two functions above for weights that several stages share. `stages`: ascending. The holders of the
/// first stage's weights hold them. All workers that run W or BW of one of the stages accumulate the
/// gradient.
std::vector<ReductionStep> reduction_plan(const Schedule& schedule, std::span<const int> stages,
                                          std::uint64_t bytes);
std::vector<int> gradient_workers(const Schedule& schedule, std::span<const int> stages);

/// Says from which holder a job reads weights that several stages share.
class SharedHolders {
 public:
  /// `schedule`: the jobs that read the weights; it must outlive this. `training`: the schedule that places
  /// the weights. The two are the same unless `schedule` is an evaluation. `first_stage`: the first of the
  /// stages that share the weights.
  SharedHolders(const Schedule& schedule, const Schedule& training, int first_stage);

  /// Returns the holder from which job `id` reads: its own worker when that holds the weights, otherwise the
  /// holder that F of the first stage reads on the same micro-batch.
  [[nodiscard]] int of(JobId id) const;

 private:
  const Schedule& schedule_;
  int first_stage_;
  std::vector<int> holders_;
};

}  // namespace starpipe::plan
