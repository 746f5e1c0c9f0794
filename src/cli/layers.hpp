// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "starpipe/plan/partition.hpp"
#include "starpipe/runtime/profile.hpp"

namespace starpipe::cli {

/// A profile: `layers:`, a list of maps with F, B, W (times, one unit for all; what is left out is 0), sizes
/// in bytes (weights, activation, gradient, stash, gradient_stash; 0 where left out, gradient as activation),
/// `name`, `count` (as many such layers in a row) and `spread`, which is for the reader.
/// Throws InputError naming file, line, key and value.
std::vector<plan::LayerCosts> read_layers(const std::filesystem::path& file);

/// The same as `read_layers` reads it.
nlohmann::ordered_json layers_json(const std::vector<runtime::MeasuredLayer>& layers);
std::string layers_yaml(const std::vector<runtime::MeasuredLayer>& layers);

}  // namespace starpipe::cli
