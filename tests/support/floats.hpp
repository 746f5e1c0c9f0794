// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace starpipe {

using Floats = std::vector<float>;

/// Returns the values of all parts in their order.
inline Floats joined(const std::vector<Floats>& parts) {
  Floats all;
  for (const Floats& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace starpipe
