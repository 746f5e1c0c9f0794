// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace starpipe::runtime {

/// What `starpipe info` prints of the runtime: StarPU's version and build, its policies, MPI, hwloc's view
/// of this machine, devices. Text, one fact a line; or JSON.
std::string describe_runtime(bool json);

}  // namespace starpipe::runtime
