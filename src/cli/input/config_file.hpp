// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "starpipe/runtime/config/config.hpp"

namespace starpipe::cli {

/// Reads a configuration file and then the overrides, each "a.b=VALUE" with a YAML value, as given to
/// --set. Strict: throws InputError, naming file and line or the override, for a key that is unknown,
/// given twice, missing or of no use with the others, and for a value of the wrong type or out of range.
/// runtime::make_experiment refuses what only shows when model and schedule are built.
runtime::Config load_config(const std::filesystem::path& file, const std::vector<std::string>& overrides);

/// The keys that these arguments of --set give. Throws InputError as `load_config` does.
std::set<std::string> overridden_keys(const std::vector<std::string>& overrides);

}  // namespace starpipe::cli
