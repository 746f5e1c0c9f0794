// SPDX-License-Identifier: Apache-2.0
// Checks of one configuration against the descriptions of the keys.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/config/config_keys.hpp"

namespace starpipe::runtime {

/// Whether a condition holds. `keys`: all keys.
bool holds(const Condition& condition, const Config& config, const std::vector<ConfigKey>& keys);

/// Whether the key applies, by `only_with` and `not_with`.
bool applies(const ConfigKey& key, const Config& config, const std::vector<ConfigKey>& keys);

/// Why this configuration cannot have the key, or cannot have its value; empty when it can. "does not apply
/// with schedule.file".
std::string misfit(const ConfigKey& key, const Config& config, const std::vector<ConfigKey>& keys);

/// Gives the keys that are not `given` the defaults that follow from other keys.
void set_defaults(Config& config, const std::vector<ConfigKey>& keys,
                  const std::function<bool(const ConfigKey& key)>& given);

/// Whether a key that is not given is missing.
bool is_missing(const ConfigKey& key, const Config& config, const std::vector<ConfigKey>& keys);

/// For configurations that a program filled: throws InputError with the key and its value when the key does
/// not take this value, or when other keys exclude it.
void check_values(const Config& config);

}  // namespace starpipe::runtime
