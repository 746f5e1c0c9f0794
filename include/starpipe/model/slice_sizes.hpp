// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

namespace starpipe::model {

/// The work of the first t tokens of a sequence: each * t + seen * t^2 / 2. With a causal mask a token costs
/// more the more tokens it sees.
struct SequenceWork {
  double each = 0;
  double seen = 0;
};

/// Returns the work that fits the `work` of slices of a sequence best, in least squares, with neither part
/// below 0. `tokens`: of each slice, at least one slice. Units are those of `work`.
SequenceWork fit_work(std::span<const int> tokens, std::span<const double> work);

/// Cuts a sequence of `context` tokens into `count` slices of work as equal as whole tokens allow, with at
/// least one token each. Returns the tokens of each. `count` is at most `context`.
std::vector<int> even_slices(int context, int count, SequenceWork work);

}  // namespace starpipe::model
