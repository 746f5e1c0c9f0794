// SPDX-License-Identifier: Apache-2.0
// In place of codelets/cuda/launch.cuh: kernels run at once, on the CPU.
#pragma once

#include <cstddef>
#include <functional>

#include "codelets/cuda/check.hpp"
#include "codelets/cuda/context.hpp"

namespace starpipe::model::cuda {

float* shared_floats();

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared = 0;
};

/// Runs `thread` once for each thread of the grid. Ends the process with a message when a barrier is not met
/// by all, or the grid is not one that every GPU takes.
void run_grid(const char* name, const Grid& grid, const std::function<void()>& thread);

template <class... Parameters, class... Arguments>
void launch(const Context& /*on*/, const char* name, const Grid& grid, void (*kernel)(Parameters...),
            Arguments... arguments) noexcept {
  run_grid(name, grid, [&] { kernel(arguments...); });
}

}  // namespace starpipe::model::cuda
