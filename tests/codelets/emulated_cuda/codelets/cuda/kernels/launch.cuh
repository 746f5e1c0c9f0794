// SPDX-License-Identifier: Apache-2.0
// In place of codelets/cuda/kernels/launch.cuh: launch() runs the kernel on the CPU before it returns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "codelets/cuda/kernels/device.hpp"

namespace starpipe::model::cuda {

float* shared_floats();

struct Grid {
  dim3 blocks;
  dim3 threads;
  std::size_t shared = 0;
};

/// Runs `thread` once for each thread of the grid. Ends the process with a message when some threads of a
/// block or warp miss a barrier that others wait at, or when the grid exceeds the limits of some GPU.
void run_grid(const char* name, const Grid& grid, const std::function<void()>& thread);

/// Ends the process with the message unless `holds`.
void require(bool holds, const char* message);

/// The running thread's number in its warp, in [0, 32).
unsigned lane();

/// The words that a lane gives to an exchange, and the words of all lanes of the warp.
using Words = std::array<std::uint32_t, 6>;
using WarpWords = std::array<Words, 32>;
/// Gives the lane's words, waits for all lanes of the warp and returns the words of all. The result is valid
/// until the lane's next exchange.
const WarpWords& exchange(const Words& words);

/// Begins a copy of `bytes` to `to`, of zeros unless `inside`. It fills `to` with NaN at once and copies only
/// in the thread's end_copies(). So a test finds a copy that begins while `to` is still read, and one that is
/// not waited for.
void begin_copy(void* to, const void* from, std::size_t bytes, bool inside);
void end_copies();

template <class... Parameters, class... Arguments>
void launch(const Context& /*on*/, const char* name, const Grid& grid, void (*kernel)(Parameters...),
            Arguments... arguments) noexcept {
  run_grid(name, grid, [&] { kernel(arguments...); });
}

}  // namespace starpipe::model::cuda
