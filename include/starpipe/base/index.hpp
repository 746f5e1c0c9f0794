// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace starpipe {

/// The position in a container of stage, micro-batch, worker, ... `number`. Such numbers are ints, from 0.
constexpr std::size_t index(int number) { return static_cast<std::size_t>(number); }

}  // namespace starpipe
