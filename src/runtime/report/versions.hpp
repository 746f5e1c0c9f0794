// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

namespace starpipe::runtime {

/// What runs: starpipe, its commit and compiler, StarPU, MPI, OpenBLAS, hwloc; strings by name.
nlohmann::ordered_json versions();

}  // namespace starpipe::runtime
