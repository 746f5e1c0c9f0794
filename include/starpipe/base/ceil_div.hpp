// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace starpipe {

/// `count` / `size`, rounded up: the number of parts of `size` that hold `count`, both not negative, `size`
/// not 0.
constexpr int ceil_div(int count, int size) { return (count + size - 1) / size; }

}  // namespace starpipe
