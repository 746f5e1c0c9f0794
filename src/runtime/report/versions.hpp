// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

namespace starpipe::runtime {

/// Versions by name: of starpipe (with its commit, compiler and build type), StarPU, MPI, OpenBLAS and hwloc.
nlohmann::ordered_json versions();

}  // namespace starpipe::runtime
