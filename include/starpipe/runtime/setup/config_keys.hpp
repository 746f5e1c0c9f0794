// SPDX-License-Identifier: Apache-2.0
// The one description of all keys of a configuration. The command line reads configurations with it and
// prints it as help; reports write their `config` with it. docs/configuration.md shows it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "starpipe/runtime/setup/config.hpp"

namespace starpipe::runtime {

/// The values that a key takes.
struct ValueType {
  enum class Kind : std::uint8_t {
    whole,         ///< an integer from `least` to `most`
    positive,      ///< a number above 0
    not_negative,  ///< a number of at least 0
    fraction,      ///< a number in [0, 1)
    boolean,
    word,   ///< one of `words`, or any text where there are none
    bytes,  ///< a number of bytes of at least `least`, with or without a unit (16MiB)
    time,   ///< a time with its unit (2ms); in JSON as a number of seconds
  };
  enum class Count : std::uint8_t { one, one_or_list, list };

  Kind kind = Kind::word;
  Count count = Count::one;
  std::uint64_t least = 0;
  std::uint64_t most = std::numeric_limits<int>::max();
  std::vector<std::string> words = {};

  /// For people: "a whole number of at least 1".
  [[nodiscard]] std::string text() const;
};

/// A key of the configuration.
struct ConfigKey {
  std::string name;  ///< with its sections: "training.optimizer.kind"
  ValueType type;
  std::string default_text;  ///< for people: "8", "required", "by FLOPs"
  std::string meaning;       ///< plain sentences
  /// The key applies only where the key `needs` has one of the values `needed`; always when `needs` is empty.
  std::string needs = {};
  std::vector<std::string> needed = {};
  std::string not_with = {};     ///< the key does not apply where this other key is given
  std::string former_name = {};  ///< read as well

  /// Sets the key's value: of `type`, an array where `type` allows a list.
  std::function<void(Config& config, const nlohmann::json& value)> set;
  /// Its value, in the form that `set` takes; null when the configuration has none.
  std::function<nlohmann::json(const Config& config)> get;
};

/// All keys, those of every kind of network included, in the order of the documentation.
std::vector<ConfigKey> config_keys();

/// The configuration in a form that can be read again: the same run follows. Without keys that are unset.
nlohmann::ordered_json config_json(const Config& config);

/// `keys` for people, a section after the other: name, values, default and meaning of each.
std::string describe_keys(const std::vector<ConfigKey>& keys);

/// `keys` for programs: `name`, `values`, `default` and `meaning` of each.
nlohmann::ordered_json keys_json(const std::vector<ConfigKey>& keys);

}  // namespace starpipe::runtime
