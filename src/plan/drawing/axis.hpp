// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe::plan::detail {

/// The distance of the ticks of an axis: the smallest 1, 2 or 5 times a power of ten that is at least
/// `least`, which must be positive.
double tick_step(double least);

}  // namespace starpipe::plan::detail
