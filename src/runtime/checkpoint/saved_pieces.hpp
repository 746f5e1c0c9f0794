// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint by which a run with other shards finds its own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "starpipe/model/layer.hpp"

namespace starpipe::runtime {

/// A tensor of a checkpoint, and which piece it is of a parameter's tensor; an empty piece: the whole tensor.
struct SavedPiece {
  std::string name;
  model::Piece piece = {};
};

/// What a checkpoint has of the tensor of a parameter: the whole tensor, or all of its pieces. Empty when it
/// has nothing. `prefix`: what stands before the parameter's name, as of the optimizer's state. Throws
/// InputError, without the checkpoint's name, when the tensor has another shape, or its pieces are not all
/// there.
std::vector<SavedPiece> saved_pieces(const CheckpointReader& reader, const std::string& prefix,
                                     const model::Parameter& parameter);

/// Reads the numbers of a parameter, which is a tensor or a piece of one. The run that wrote the checkpoint
/// may have cut the tensor otherwise. Throws InputError as `saved_pieces` and CheckpointReader::read do, and
/// when the checkpoint has nothing of the tensor.
void read_numbers(CheckpointReader& reader, const std::string& prefix, const model::Parameter& parameter,
                  std::span<float> numbers);

}  // namespace starpipe::runtime
