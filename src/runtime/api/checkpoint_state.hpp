// SPDX-License-Identifier: Apache-2.0
// What a checkpoint holds: tensors by the names of parameters, and facts by which a run knows that the
// checkpoint is of the same training.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint_reader.hpp"
#include "runtime/checkpoint/checkpoint_writer.hpp"
#include "runtime/api/run_on_ranks.hpp"

namespace starpipe::runtime {

/// The trained numbers of a set of parameters, copied out of the engine.
struct SetCopy {
  int set = 0;  ///< its number, as in Network::sets()
  std::vector<float> parameters = {};
  std::vector<float> optimizer = {};
};

/// The tensors of a copy, by parameter: its values, and each piece of its optimizer state. They are views of
/// `copy`.
std::vector<TensorView> tensors_of(const AgreedRun& run, const SetCopy& copy);

/// Reads the trained numbers of a set of parameters from a checkpoint. `set`: its number. Throws
/// InputError with the file and the tensor.
void read_set(const AgreedRun& run, CheckpointReader& reader, int set, std::span<float> parameters,
              std::span<float> optimizer);

/// The fact that may change when a run goes on: the content of the validation data, where there are some.
inline constexpr const char* validation_fact = "data.validation";

/// What must be the same when a run goes on, by configuration key; and `validation_fact`.
nlohmann::ordered_json training_facts(const AgreedRun& run);

/// Throws InputError when the run cannot go on from a checkpoint: for the first name or shape of a parameter
/// that differs, then for the first fact. `facts`: those of the checkpoint. `name`: the checkpoint's, for
/// messages.
void require_same_training(const AgreedRun& run, const CheckpointReader& reader,
                           const nlohmann::ordered_json& facts, const std::string& name);

}  // namespace starpipe::runtime
