// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace starpipe::runtime {

/// Facts about the runtime for `starpipe info`: versions, this machine as hwloc sees it, its GPUs, StarPU's
/// build and policies, and the kinds of layers. Text with one fact a line, or JSON.
std::string describe_runtime(bool json);

}  // namespace starpipe::runtime
