// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "plan/search/partition.hpp"
#include "runtime/setup/partition_choice.hpp"

namespace starpipe::cli {

/// Reads a profile: a map whose key `layers` has a list of units. A unit is a map with: the times F, B and W
/// (any one time unit); the sizes weights, activation, gradient, stash and gradient_stash (bytes); `name`;
/// `count`, the number of such units in a row; and `spread`, which is ignored. Missing times and sizes are 0,
/// but a missing gradient is as large as the activation. Instead of F, B, W and spread, every unit may have a
/// map of these keys for each of the devices `cpu` and `cuda`. The key `shared` may have a list of weights
/// that units share: maps with `name`, `units` (their numbers, ascending), `weights` and `master`. Throws
/// InputError naming file, line, key and value.
plan::Profile read_profile(const std::filesystem::path& file);

/// A measured profile, which read_profile reads again.
nlohmann::ordered_json profile_json(const runtime::MeasuredUnits& measured);
std::string profile_yaml(const runtime::MeasuredUnits& measured);

}  // namespace starpipe::cli
