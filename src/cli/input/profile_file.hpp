// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "starpipe/plan/partition/partition.hpp"
#include "starpipe/runtime/setup/profile.hpp"

namespace starpipe::cli {

/// A profile: `layers:`, a list of maps with F, B, W (times, one unit for all; what is left out is 0), sizes
/// in bytes (weights, activation, gradient, stash, gradient_stash; 0 where left out, gradient as activation),
/// `name`, `count` (as many such layers in a row) and `spread`, which is for the reader. Instead of F, B, W
/// and spread there may be a map of them for each of several devices, `cpu` and `cuda`, in all layers alike.
/// Throws InputError naming file, line, key and value.
plan::Profile read_layers(const std::filesystem::path& file);

/// The same as `read_layers` reads it.
nlohmann::ordered_json layers_json(const runtime::MeasuredLayers& measured);
std::string layers_yaml(const runtime::MeasuredLayers& measured);

}  // namespace starpipe::cli
