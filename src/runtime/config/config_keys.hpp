// SPDX-License-Identifier: Apache-2.0
// The one description of all keys of a configuration. The command line reads configurations with it and
// prints it as help; reports write their `config` with it. docs/configuration.md shows it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "starpipe/runtime/config/config.hpp"
#include "runtime/config/config_key.hpp"

namespace starpipe::runtime {

/// All keys, those of every kind of network included, in the order of the documentation.
std::vector<ConfigKey> config_keys();

/// The key with this name or former name; null when there is none.
const ConfigKey* find_key(const std::vector<ConfigKey>& keys, std::string_view name);

/// The configuration in a form that can be read again: the same run follows. Without keys that are unset.
nlohmann::ordered_json config_json(const Config& config);

/// `keys` for people, a section after the other: name, values, default and meaning of each.
std::string describe_keys(const std::vector<ConfigKey>& keys);

/// `keys` for programs: `name`, `values`, `default` and `meaning` of each.
nlohmann::ordered_json keys_json(const std::vector<ConfigKey>& keys);

}  // namespace starpipe::runtime
