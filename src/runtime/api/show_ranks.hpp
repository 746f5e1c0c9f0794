// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// Prints on rank 0 where each rank of MPI_COMM_WORLD would run in a training run of the configuration: its
/// machine, its share of the cores, who bound it to them, and its workers. As text or JSON. Runs no step,
/// and does not start StarPU. Collective; `configure` and the result are as in `train`.
int show_ranks(const std::function<Config()>& configure, bool json);

}  // namespace starpipe::runtime
