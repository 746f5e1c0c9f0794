// SPDX-License-Identifier: Apache-2.0
#include "starpipe/model/slice_sizes.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace starpipe::model {

SequenceWork fit_work(std::span<const int> tokens, std::span<const double> work) {
  // The normal equations of work = each * n + seen * s, with n tokens of a slice that see s others in all.
  double nn = 0, ns = 0, ss = 0, nw = 0, sw = 0, first = 0;
  for (std::size_t k = 0; k < tokens.size(); ++k) {
    const double n = tokens[k];
    const double s = n * (first + n / 2);
    nn += n * n;
    ns += n * s;
    ss += s * s;
    nw += n * work[k];
    sw += s * work[k];
    first += n;
  }
  const double determinant = nn * ss - ns * ns;
  const double seen = determinant > 0 ? (nn * sw - ns * nw) / determinant : 0;
  const double each = determinant > 0 ? (ss * nw - ns * sw) / determinant : nw / nn;
  if (seen <= 0) return {nw / nn, 0};
  if (each < 0) return {0, sw / ss};
  return {each, seen};
}

std::vector<int> even_slices(int context, int count, SequenceWork work) {
  const auto& [each, seen] = work;
  const double t = context;
  const double all = each * t + seen * t * t / 2;
  std::vector<int> tokens;
  int first = 0;
  for (int k = 1; k <= count; ++k) {
    const double part = all * k / count;
    const double end = seen > 0 ? (std::sqrt(each * each + 2 * seen * part) - each) / seen : part / each;
    // Each later slice needs at least one token.
    const int last = context - (count - k);
    const int next = k == count ? context : std::clamp(static_cast<int>(std::round(end)), first + 1, last);
    tokens.push_back(next - first);
    first = next;
  }
  return tokens;
}

}  // namespace starpipe::model
