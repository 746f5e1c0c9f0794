// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/base/interval.hpp"

namespace starpipe {

/// Times and sizes that users may give. A sum of fewer than ten of them is one of `finite_amounts`.
inline constexpr Interval amounts = {.least = 0, .most = 1e99};

/// Times and sizes that the functions of `plan` accept; they throw InputError for others. Sums and squares of
/// accepted numbers stay finite.
inline constexpr Interval finite_amounts = {.least = 0, .most = 1e100, .below = true};

}  // namespace starpipe
