// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "starpipe/base/interval.hpp"
#include "starpipe/plan/simulate/costs.hpp"

namespace starpipe::cli {

/// A time of at least 0, or a bandwidth, that a user wrote.
struct Quantity {
  double value = 0;       ///< with a unit in seconds or bytes per second, without in units that have no name
  bool has_unit = false;  ///< the user wrote ms, GB/s or another unit
};

/// The units of several quantities, of which either all or none must have one.
struct UnitsSeen {
  bool with = false;
  bool without = false;

  /// A time of 0 is the same in any unit.
  void note(const Quantity& read) {
    if (read.value > 0) (read.has_unit ? with : without) = true;
  }
  void note(const UnitsSeen& more) {
    with |= more.with;
    without |= more.without;
  }
  [[nodiscard]] bool mixed() const { return with && without; }
};

/// A YAML value that a user wrote. A reader throws InputError when the value is not of its type; the message
/// starts with `label`.
class YamlValue {
 public:
  /// `position`: the value's file and line, or option. `path`: the keys that lead to it, as "layers[2].F".
  YamlValue(const YAML::Node& node, std::string position, std::string path = {})
      : node_(node), position_(std::move(position)), path_(std::move(path)) {}

  /// Returns a value in `file`. Messages about a key of it have the key's line.
  static YamlValue in_file(const YAML::Node& node, const std::string& file);

  [[nodiscard]] const YAML::Node& node() const { return node_; }
  /// Returns the label of the value in messages: "POSITION: PATH".
  [[nodiscard]] std::string label() const { return path_.empty() ? position_ : position_ + ": " + path_; }
  /// Returns the value `node` of a key of this map.
  [[nodiscard]] YamlValue member(const std::string& key, const YAML::Node& node) const {
    return {node, position_, path_.empty() ? key : path_ + "." + key};
  }
  /// Returns the items of this list, with its label. Throws InputError "LABEL: expected WHAT, got VALUE" if
  /// it is not a list.
  [[nodiscard]] std::vector<YamlValue> items(std::string_view what) const;
  /// Does the same as `items` for a list in `file` that must not be empty. Each item has its own line, and
  /// its index in its path.
  [[nodiscard]] std::vector<YamlValue> items_in(const std::string& file, std::string_view what) const;
  [[noreturn]] void fail(std::string_view message) const;
  /// Fails as `fail` does, about a key of this map.
  [[noreturn]] void fail_at(const YAML::Node& key, std::string_view message) const;
  /// Throws InputError "LABEL: expected WHAT, got VALUE".
  [[noreturn]] void expected(std::string_view what) const;

  /// Returns an integer in [min, max].
  template <class Integer>
  [[nodiscard]] Integer whole(Integer min, Integer max = std::numeric_limits<Integer>::max()) const;
  [[nodiscard]] double number(const Interval& interval) const;
  [[nodiscard]] bool boolean() const;
  /// Reads a number of bytes, with a unit (16MiB) or without.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Reads bytes per second with a unit (25GB/s, 100Gbit/s), or bytes per unit of time, a number of more than
  /// 0.
  [[nodiscard]] Quantity bandwidth() const;
  /// Reads a time with its unit (s, ms, us), in seconds.
  [[nodiscard]] double time() const;
  /// Reads a time with its unit, or a number in a unit without a name.
  [[nodiscard]] Quantity time_or_number() const;
  /// Reads text that is not empty.
  [[nodiscard]] std::string word() const;
  [[nodiscard]] std::string one_of(const std::vector<std::string>& words) const;

 private:
  /// Returns the time in seconds; nullopt if the value is not a number followed by a unit.
  [[nodiscard]] std::optional<double> seconds() const;

  YAML::Node node_;
  std::string position_;
  std::string path_;
  std::string file_ = {};  // empty unless made by in_file
};

/// Returns the bytes that a text names, in decimal, with a unit (16MiB) or without; nullopt if it names none.
std::optional<std::uint64_t> bytes_in(const std::string& text);
/// The text that `bytes_in` takes, for "expected ..., got ...".
inline constexpr const char* bytes_words = "a number of bytes such as 4096 or 16MiB";

/// Returns "FILE:LINE" of something in `file`.
std::string position_of(const std::string& file, const YAML::Node& node);

/// Reads the one document in a file; null when it is empty. Throws InputError naming file and line.
YAML::Node load_yaml(const std::filesystem::path& file);

/// A key of a map that is read into a T.
template <class T>
struct MapKey {
  std::string_view name;
  void (*read)(const YamlValue& value, T& into);
  bool required = false;
};

/// Calls `read` with each key's index in `names` and its value, in the map's order. Returns the names of the
/// keys that the map has. Throws InputError if `map` is not a map, and for a key that is unknown or there
/// twice.
std::set<std::string> read_map(const YamlValue& map, std::span<const std::string_view> names,
                               const std::function<void(std::size_t key, const YamlValue& value)>& read);

/// Reads a map into a T. Members whose keys are missing keep their values. Throws InputError for a missing
/// key that is required.
template <class T>
std::set<std::string> read_map(const YamlValue& map, std::span<const MapKey<T>> keys, T& into) {
  std::vector<std::string_view> names;
  for (const MapKey<T>& key : keys) names.push_back(key.name);
  std::set<std::string> seen =
      read_map(map, names, [&](std::size_t key, const YamlValue& value) { keys[key].read(value, into); });
  for (const MapKey<T>& key : keys) {
    if (key.required && !seen.contains(std::string(key.name)))
      map.fail(std::string(key.name) + " is missing");
  }
  return seen;
}

/// The map key for the time of pass_times[pass]. `durations` returns the plan::Durations inside a T.
template <std::size_t pass, class T, plan::Durations& (*durations)(T&)>
constexpr MapKey<T> time_key = {plan::pass_times[pass].name, [](const YamlValue& value, T& into) {
                                  durations(into).*plan::pass_times[pass].time = value.number(amounts);
                                }};

/// Returns a text for messages: "'abc'", "a list", "nothing".
std::string described(const YAML::Node& node);

}  // namespace starpipe::cli
