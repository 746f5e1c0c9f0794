// SPDX-License-Identifier: Apache-2.0
// The data of a schedule's micro-batches, which may have slices of a data set's micro-batches.
#pragma once

#include <span>
#include <vector>

#include "starpipe/model/dataset.hpp"
#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// Writes the input of `stage`, a source, in the form that its passes read. `out`: input_size(0) words of
/// Network::stage(stage, microbatch). A slice has its rows of each sequence.
void load_input_rows(const Dataset& data, const Network& network, int stage, int step, int microbatch,
                     FloatView out);
/// Writes the target that `stage` reads, likewise.
void load_target_rows(const Dataset& data, const Network& network, int stage, int step, int microbatch,
                      FloatView out);

/// Returns the losses of whole micro-batches. The loss is the mean over rows, so each slice weighs as much as
/// it has of them; slices are added in order. `losses`: of the schedule's micro-batches.
std::vector<float> losses_of_whole(const Network& network, std::span<const float> losses);

}  // namespace starpipe::model
