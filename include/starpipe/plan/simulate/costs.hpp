// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "starpipe/plan/schedule/job.hpp"

namespace starpipe::plan {

/// Time of each pass of one stage, in any one unit. BW lasts B + W.
struct Durations {
  double F = 1;
  double B = 1;
  double W = 1;

  [[nodiscard]] double of(Pass pass) const;
  friend bool operator==(const Durations&, const Durations&) = default;
};

/// Bytes of what one stage and micro-batch exchanges and keeps. All zero when no model is known.
struct StageSizes {
  std::uint64_t activation = 0;      ///< the stage's output
  std::uint64_t gradient = 0;        ///< gradient with respect to the stage's output
  std::uint64_t stash = 0;           ///< what F keeps for B and W
  std::uint64_t gradient_stash = 0;  ///< what B keeps for W where the backward pass is split
  std::uint64_t weights = 0;         ///< the stage's parameters, as passes read them
  std::uint64_t master = 0;          ///< what the optimizer has of them besides; 0 when it updates `weights`

  /// Of what the optimizer updates. As much is a gradient, and each state.
  [[nodiscard]] std::uint64_t updated() const { return master > 0 ? master : weights; }
};

/// What things cost. Per-stage vectors have one entry a stage, or a single one for all stages.
struct Costs {
  std::vector<Durations> durations = {Durations{}};
  std::vector<StageSizes> sizes = {StageSizes{}};
  /// A transfer between two workers takes alpha + beta * bytes.
  double alpha = 0;
  double beta = 0;
  /// Transfers overlap compute: a result leaves when it is there, weights at time 0. Otherwise a worker
  /// fetches the inputs of a job, one after the other, when it has picked it.
  bool prefetch = true;

  [[nodiscard]] const Durations& duration(int stage) const;
  [[nodiscard]] const StageSizes& size(int stage) const;
};

/// The costs of a schedule with recomputation: B, and with it BW, lasts as long as F and B. `simulate` takes
/// durations as they are, so that measured ones, which have F in B, fit too.
Costs with_recomputation(Costs costs);

}  // namespace starpipe::plan
