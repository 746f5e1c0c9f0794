// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace starpipe {

/// The index in a container of the stage, micro-batch, worker, ... with this number. Such numbers are ints >=
/// 0.
constexpr std::size_t index(int number) { return static_cast<std::size_t>(number); }

}  // namespace starpipe
