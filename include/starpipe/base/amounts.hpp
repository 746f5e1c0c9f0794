// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "starpipe/base/interval.hpp"

namespace starpipe {

/// Times and sizes that users may give. Sums of a few stay below 1e100, from which on `plan` counts an amount
/// as infinite.
inline constexpr Interval amounts = {.least = 0, .most = 1e99};

}  // namespace starpipe
