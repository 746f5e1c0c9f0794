// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>

#include "runtime/simulation/cluster.hpp"

namespace starpipe::cli {

/// Reads the description of a cluster (docs/simulated-clusters.md has the format). Strict: throws InputError,
/// naming file and line, for a key that is unknown or missing, and for a value that cannot be. `sharing`: of
/// all levels, in place of what the file says.
runtime::Cluster read_cluster(const std::filesystem::path& file,
                              std::optional<plan::Sharing> sharing = std::nullopt);

}  // namespace starpipe::cli
