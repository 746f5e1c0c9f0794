// SPDX-License-Identifier: Apache-2.0
// Weights in safetensors files: each rank writes the parameters that it holds to their places.
#pragma once

#include <exception>
#include <filesystem>

#include "model/weights.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/host/mpi.hpp"
#include "starpipe/model/network.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::runtime {

/// Collective. Checks before the first step that the files of a layout can be written, and leaves no trace.
/// Tells the program in one line if the ranks do not share their folder (see save_weights). Throws InputError
/// on every rank when a file cannot be written, or when a layout of several files has the name of a file that
/// exists: programs would read that one and not the index.
void check_weights_output(const Mpi& mpi, const std::filesystem::path& file,
                          const model::WeightsLayout& layout);

/// Collective. Saves the weights. Each rank writes the parameters of the sets whose first holder it has, from
/// where they are. Where the ranks do not share the folder of rank 0, and for a pipe or a device, rank 0
/// receives all parameters and writes them; a pipe or device takes them at the end, from memory. If a number
/// is beyond the range of the format's type, the weights are saved in fp32. Returns what is to be thrown on
/// every rank, nullptr if nothing is: InputError as check_weights_output, RunFailure when another rank than 0
/// cannot write, and for a number beyond the range; on rank 0 std::runtime_error when it cannot write.
[[nodiscard]] std::exception_ptr save_weights(const Mpi& mpi, const Engine& engine,
                                              const model::Network& network,
                                              const std::filesystem::path& file, model::SaveFormat format);

}  // namespace starpipe::runtime
