// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/base/interval.hpp"

namespace starpipe {

/// Times and sizes that users may give. A sum of fewer than ten of them is one of `finite_amounts`.
inline constexpr Interval amounts = {.least = 0, .most = 1e99};

/// Times and sizes that `plan` accepts. It refuses all others, so that sums and squares of these stay finite.
inline constexpr Interval finite_amounts = {.least = 0, .most = 1e100, .below = true};

}  // namespace starpipe
