// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::runtime {

/// Which verdicts a step has: what its workers learn of the whole step before its updates, or after them.
struct StepRules {
  /// Whether the norm of the gradient is computed. Not where jobs are emulated, since nothing is computed.
  bool has_norm = true;
  /// Whether the update is skipped when a pass, or the gradient, is not finite (`training.nonfinite: skip`).
  bool can_skip = false;
};

}  // namespace starpipe::runtime
