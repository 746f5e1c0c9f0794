// SPDX-License-Identifier: Apache-2.0
// The one description of all keys of a configuration. The command line reads configurations with it and
// prints it as help; reports write their `config` with it. docs/configuration.md shows it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/config/config_key.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// All keys, with the keys of every kind of network, in the order of the documentation.
std::vector<ConfigKey> config_keys();

/// Returns the key with this name or former name; null if there is none.
const ConfigKey* find_key(const std::vector<ConfigKey>& keys, std::string_view name);

/// The configuration in a form that can be read again: the same run follows. Without keys that are unset.
nlohmann::ordered_json config_json(const Config& config);

/// `keys` for people, a section after the other: name, values, default and meaning of each.
std::string describe_keys(const std::vector<ConfigKey>& keys);

/// `keys` for programs: `name`, `values`, `default` and `meaning` of each.
nlohmann::ordered_json keys_json(const std::vector<ConfigKey>& keys);

// Checks of one configuration against the descriptions of the keys.

/// True if a condition holds. `keys`: all keys.
bool holds(const Condition& condition, const Config& config, const std::vector<ConfigKey>& keys);

/// True if the key applies, by `only_with` and `not_with`.
bool applies(const ConfigKey& key, const Config& config, const std::vector<ConfigKey>& keys);

/// Returns why this configuration cannot have the key, or its value, such as "does not apply with
/// schedule.file"; empty if it can.
std::string misfit(const ConfigKey& key, const Config& config, const std::vector<ConfigKey>& keys);

/// Gives the keys that are not `given` the defaults that follow from other keys.
void set_defaults(Config& config, const std::vector<ConfigKey>& keys,
                  const std::function<bool(const ConfigKey& key)>& given);

/// True if a key that is not given is missing.
bool is_missing(const ConfigKey& key, const Config& config, const std::vector<ConfigKey>& keys);

/// For configurations that a program filled. Throws InputError with the key and its value if the key does not
/// take this value, or if other keys exclude it.
void check_values(const Config& config);

}  // namespace starpipe::runtime
