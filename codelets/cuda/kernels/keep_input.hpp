// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "codelets/cuda/kernels/check.hpp"
#include "codelets/cuda/kernels/context.hpp"
#include "starpipe/model/memory_view.hpp"

namespace starpipe::model::cuda {

/// Copies the first `bytes` of the input to the beginning of the stash, unless the input lies there already.
/// `name` names the pass in the message of a failure.
inline void keep_input(const Context& on, const char* name, ConstMemory input, Memory stash,
                       std::size_t bytes) noexcept {
  if (input.data() == stash.data()) return;
  check(cudaMemcpyAsync(stash.data(), input.data(), bytes, cudaMemcpyDeviceToDevice, on.stream), name);
}

}  // namespace starpipe::model::cuda
