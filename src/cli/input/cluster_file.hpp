// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "starpipe/runtime/simulation/cluster.hpp"

namespace starpipe::cli {

/// Reads the description of a cluster (docs/simulated-clusters.md has the format). Strict: throws InputError,
/// naming file and line, for a key that is unknown or missing, and for a value that cannot be.
runtime::Cluster read_cluster(const std::filesystem::path& file);

}  // namespace starpipe::cli
