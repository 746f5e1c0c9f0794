// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/interval.hpp"

namespace starpipe {

/// Times and sizes that users may give. Those above 0 are large enough to divide by. A sum of fewer than ten
/// is one of `finite_amounts`.
inline constexpr Interval amounts = {.least = 1e-99, .most = 1e99, .zero = true};

/// Times and sizes that the functions of `plan` accept; they throw InputError for others. Sums and squares of
/// accepted numbers stay finite.
inline constexpr Interval finite_amounts = {.least = 0, .most = 1e100, .below = true};

}  // namespace starpipe
