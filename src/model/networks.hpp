// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "starpipe/model/network.hpp"

namespace starpipe::model {

/// Ops that are never separated.
struct Unit {
  std::string name;
  std::vector<StageOp> ops;
};

/// A network before it is cut: legs that run side by side (one, for a chain), then the tail that joins
/// them. A chain has its tail as last unit of the leg.
struct UnitGraph {
  std::size_t rows = 0;
  std::vector<std::vector<Unit>> legs;  ///< all with the same number of units
  std::size_t leg_inputs = 0;           ///< columns of the data that each leg reads
  Unit join;                            ///< empty with one leg
  std::shared_ptr<const Loss> loss;
};

// One file a network; adding one is adding its file, its declaration and its entry in network.cpp. (Not
// self-registering as layers are: a linker leaves an object of a static library out when nothing names it.)
UnitGraph gpt_units(const ModelConfig& config, std::size_t microbatch_size);
UnitGraph mlp_units(const ModelConfig& config, std::size_t microbatch_size);

/// Throws InputError "KEY must be ..." unless low <= value <= high.
void require_range(const char* key, int value, int low, int high);

/// A unit's op for a layer.
StageOp layer_op(const LayerSpec& spec, Precision precision);
inline StageOp residual_begin() { return {StageOp::Kind::residual_begin, nullptr}; }
inline StageOp residual_end() { return {StageOp::Kind::residual_end, nullptr}; }

}  // namespace starpipe::model
