// SPDX-License-Identifier: Apache-2.0
// Replaces MPI between the ranks of a simulated run. The ranks share one process, in which this library is
// loaded once.
#pragma once

#include <string>
#include <vector>

namespace starpipe::runtime {

/// Returns when each of the ranks has called it, in no simulated time: the texts of all ranks, by rank.
std::vector<std::string> exchange_texts(int rank, int ranks, std::string mine);

/// From now on messages with data of the step take their time but are empty: these data are never read. Short
/// messages, such as StarPU-MPI's own, are carried.
void leave_out_data();

}  // namespace starpipe::runtime
