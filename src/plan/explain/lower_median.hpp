// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

namespace starpipe::plan::detail {

/// The median; of an even number of values the smaller of the two in the middle, so that it is one of the
/// values. Nothing of no values. Expected O(values).
inline std::optional<double> lower_median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace starpipe::plan::detail
