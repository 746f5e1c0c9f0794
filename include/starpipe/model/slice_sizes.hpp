// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

namespace starpipe::model {

/// Describes the work of the first t tokens of a sequence: each * t + seen * t^2 / 2, in any unit. With a
/// causal mask a token costs more the more tokens it sees.
struct SequenceWork {
  double each = 0;
  double seen = 0;
};

/// Fits the measured `work` of the slices of a sequence by least squares. Neither part of the result is
/// negative, and its unit is that of `work`. `tokens`: the tokens of each slice, in order. There is at least
/// one slice, and as many numbers in `work`.
SequenceWork fit_work(std::span<const int> tokens, std::span<const double> work);

/// Cuts a sequence of `context` tokens into `count` slices of work as equal as whole tokens allow, with at
/// least one token each. Returns the tokens of each. `count` is at most `context`.
std::vector<int> even_slices(int context, int count, SequenceWork work);

}  // namespace starpipe::model
