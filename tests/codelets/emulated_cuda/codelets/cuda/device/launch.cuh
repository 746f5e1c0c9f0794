// SPDX-License-Identifier: Apache-2.0
// In place of codelets/cuda/device/launch.cuh: kernels run at once, on the CPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "codelets/cuda/device/check.hpp"
#include "codelets/cuda/device/context.hpp"

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

/// Ends the process with the message unless `holds`.
void require(bool holds, const char* otherwise);

/// The thread's number in its warp.
unsigned lane();

/// What a lane gives to its warp, and what the lanes of a warp gave.
using Words = std::array<std::uint32_t, 6>;
using WarpWords = std::array<Words, 32>;
/// Waits for all lanes of the warp. The result is there until the lane's next exchange.
const WarpWords& exchange(const Words& words);

/// What is at `to` is NaN from now on, and that of `from`, or 0 if not `inside`, only after the thread's
/// end_copies(): so neither a copy that begins too early nor one that nothing waits for goes unseen.
void begin_copy(void* to, const void* from, std::size_t bytes, bool inside);
void end_copies();

template <class... Parameters, class... Arguments>
void launch(const Context& /*on*/, const char* name, const Grid& grid, void (*kernel)(Parameters...),
            Arguments... arguments) noexcept {
  run_grid(name, grid, [&] { kernel(arguments...); });
}

}  // namespace starpipe::model::cuda
