// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace starpipe::plan {

/// Of a container, for the number of a stage, micro-batch, worker, ..., which is an int.
constexpr std::size_t index(int number) { return static_cast<std::size_t>(number); }

}  // namespace starpipe::plan
