// SPDX-License-Identifier: Apache-2.0
// The keys of the configuration: names, values, defaults and rules of each, in one table.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "starpipe/base/interval.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime {

/// The values that a key takes.
struct ValueType {
  enum class Kind : std::uint8_t {
    whole,   ///< an integer from `min` to `max`
    number,  ///< in `interval`
    boolean,
    word,   ///< one of `words`, or any text where there are none
    bytes,  ///< a number of bytes of at least `min`, with or without a unit (16MiB); `max` does not count
    time,   ///< a time with its unit (2ms); in JSON as a number of seconds
  };
  enum class Count : std::uint8_t { one, one_or_list, list, map };

  Kind kind = Kind::word;
  Count count = Count::one;
  std::uint64_t min = 0;
  std::uint64_t max = std::numeric_limits<int>::max();
  Interval interval = {};
  bool fp32 = false;  ///< a number that kernels use in fp32: neither too large for it nor rounded to 0
  std::vector<std::string> words = {};
  /// The key whose value is the length of a list; empty: any length.
  std::string length = {};

  /// Returns a text for people: "a whole number of at least 1".
  [[nodiscard]] std::string text() const;
  /// Returns why `value`, in the form of ConfigKey::get, is not one of these values: "must be at least 1, got
  /// 0". Empty if it is one.
  [[nodiscard]] std::string problem(const nlohmann::json& value) const;
};

/// A condition on another key.
struct Condition {
  std::string key = {};  ///< a key, or a section: some key of it is given; empty: always holds
  std::vector<std::string> values = {};  ///< holds when the key has one of these; empty: any value

  /// Returns a text for people: "`model.kind: gpt`", "`schedule.file`".
  [[nodiscard]] std::string text() const;
};

/// The default of a key under a condition.
struct DefaultUnder {
  Condition condition;
  nlohmann::json value;   ///< null: the key stays unset
  std::string text = {};  ///< for people; empty: the value itself
};

/// A value that a key cannot have under a condition.
struct RefusedValue {
  std::string value;
  Condition condition;
};

/// Which keys and values go together, and the defaults that follow from other keys.
struct KeyRules {
  std::string default_text = {};  ///< for people, when the default value does not say it: "balanced by FLOPs"
  std::vector<DefaultUnder> defaults = {};  ///< the first whose condition holds counts
  /// The key must be given under this condition, unless it does not apply or one of `defaults` holds.
  std::optional<Condition> required = {};
  /// The key applies where all of `only_with` hold, and none of `not_with`.
  std::vector<Condition> only_with = {};
  std::vector<Condition> not_with = {};
  std::vector<RefusedValue> refused_values = {};
  /// Given by --set, the key removes the file's keys that do not apply together with it.
  bool replaces = false;
};

/// A key of the configuration.
struct ConfigKey : KeyRules {
  std::string name;  ///< with its sections: "training.optimizer.kind"
  ValueType type = {};
  std::string meaning = {};           ///< plain sentences
  nlohmann::json default_value = {};  ///< where none of `defaults` holds; null: unset

  /// Sets the key's value: of `type`, an array where `type` allows a list; null unsets it.
  std::function<void(Config& config, const nlohmann::json& value)> set = {};
  /// Its value, in the form that `set` takes; null when the configuration has none.
  std::function<nlohmann::json(const Config& config)> get = {};

  /// Returns a text for people: "8", "required", "0.01; 0 with `training.optimizer.kind: sgd`".
  [[nodiscard]] std::string default_for_people() const;
  /// Returns the meaning, and where the key applies.
  [[nodiscard]] std::string full_meaning() const;
};

/// Returns all keys, with the keys of every kind of network, in the order of the documentation.
std::vector<ConfigKey> config_keys();

/// Returns the key with this name; null if there is none.
const ConfigKey* find_key(const std::vector<ConfigKey>& keys, std::string_view name);

/// Returns the configuration in a form that can be read again: the same run follows. Without keys that are
/// unset.
nlohmann::ordered_json config_json(const Config& config);

/// Returns `keys` for people, section by section: name, values, default and meaning of each.
std::string describe_keys(const std::vector<ConfigKey>& keys);

/// Returns `keys` for programs: `name`, `values`, `default` and `meaning` of each.
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
