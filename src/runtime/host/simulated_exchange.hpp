// SPDX-License-Identifier: Apache-2.0
// What replaces MPI between the ranks of a simulated run, and what they tell SMPI. They share one process, in
// which this library is loaded once.
#pragma once

#include <string>
#include <vector>

namespace starpipe::runtime {

/// Returns when each of the ranks has called it, in no simulated time: the texts of all ranks, by rank.
std::vector<std::string> exchange_texts(int rank, int ranks, std::string mine);

/// Messages with data of the step take their time and carry nothing: nobody reads these data. Short messages,
/// StarPU-MPI's own among them, are carried.
void leave_out_data();

}  // namespace starpipe::runtime
