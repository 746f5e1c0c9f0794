// SPDX-License-Identifier: Apache-2.0
// What replaces MPI between the ranks of a simulated run. They share one process.
#pragma once

#include <string>
#include <vector>

namespace starpipe::runtime {

/// Returns when each of the ranks has called it, in no simulated time: the texts of all ranks, by rank. It is
/// in a library of its own, which is loaded once for all ranks.
std::vector<std::string> exchange_texts(int rank, int ranks, std::string mine);

}  // namespace starpipe::runtime
