// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::runtime {

/// What a step has beside the jobs of its schedule: verdicts, which are what its workers learn of the whole
/// step before its updates, or after them; and the evaluations of the same run.
struct StepRules {
  /// Whether the norm of the gradient is computed. Not where jobs are emulated, since nothing is computed.
  bool has_norm = true;
  /// Whether the update is skipped when a pass, or the gradient, is not finite (`training.nonfinite: skip`).
  bool can_skip = false;
  /// Micro-batches of each evaluation of the run; 0: it has none. Evaluations share the scratch memory of the
  /// steps.
  int evaluated = 0;
};

}  // namespace starpipe::runtime
