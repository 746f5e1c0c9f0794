// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "starpipe/model/layer.hpp"

namespace starpipe::model::cpu {

/// Makes the layer "attention" of a slice of the context (sequence_rows), which also sees the keys and values
/// of the slices before. Those of a slice are rows [k | v], which F copies: so the stash is q, and one
/// log-sum-exp per row and head. All else is as without slices. Throws as make_layer() does.
std::unique_ptr<Layer> make_sliced_attention(const LayerSpec& spec);

}  // namespace starpipe::model::cpu
