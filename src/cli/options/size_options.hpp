// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace starpipe::cli {

/// Adds --workers and --microbatches, both required and limited to the given numbers.
void add_size_options(CLI::App& command, int& workers, int workers_limit, int& microbatches,
                      int microbatches_limit);

}  // namespace starpipe::cli
