// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>
#include <nlohmann/json_fwd.hpp>

namespace starpipe::plan {

/// Whole numbers without a decimal point: 33, not 33.0.
nlohmann::ordered_json number(double value);

/// Returns the nearest whole number of nanoseconds.
std::int64_t nanoseconds(double seconds);

/// Returns an array of `of(element)` for each element.
template <class Range, class Of>
nlohmann::ordered_json array_of(const Range& range, Of of) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const auto& element : range) all.push_back(of(element));
  return all;
}

/// Throws InputError, naming `source_name` and the position in `text`, when `text` is not JSON, and naming
/// the key when an object has it twice.
nlohmann::json parse_json(std::string_view text, const std::string& source_name);

/// A value in a parsed file, and the path to it for messages, as in "durations[2].F". Refers to the parsed
/// file and the name of the source, which must outlive it. All readers throw InputError, naming source and
/// path, when the value is not of the kind asked for.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string path, const std::string& source_name)
      : value_(&value), path_(std::move(path)), source_name_(&source_name) {}

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const nlohmann::json& raw() const { return *value_; }

  /// Returns the member `key` of an object, if it has one.
  [[nodiscard]] std::optional<JsonValue> find(std::string_view key) const;
  /// Returns the member `key` of an object, which must have it.
  [[nodiscard]] JsonValue at(std::string_view key) const;
  /// Element `index` of an array, which must have it.
  [[nodiscard]] JsonValue at(std::size_t index) const;
  [[nodiscard]] std::size_t size() const { return value_->size(); }

  /// The value itself, which must be an array, or an object.
  const JsonValue& array() const;
  const JsonValue& object() const;

  /// Fails, with the known keys, when the object has a member that is not among `keys`.
  void only(std::span<const std::string_view> keys) const;

  /// Returns a whole number from `min` to the largest int but one: counts derived from it stay in range.
  [[nodiscard]] int whole(int min) const;
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] double number() const;
  /// Seconds, of a whole number of nanoseconds that may be negative: at most 2^50, about 13 days.
  [[nodiscard]] double nanoseconds() const;
  /// Returns a time: finite and not negative.
  [[nodiscard]] double time() const;
  [[nodiscard]] bool truth() const;
  [[nodiscard]] std::string word() const;

  [[noreturn]] void fail(const std::string& message) const;
  /// Fails with "expected <kind>, got <the value>".
  [[noreturn]] void expected(const std::string& kind) const;

 private:
  [[nodiscard]] std::string path_to(std::string_view key) const;

  const nlohmann::json* value_;
  std::string path_;
  const std::string* source_name_;
};

/// Rules for a JSON text besides the grammar. nlohmann's parser does not check them, and its callback, which
/// could, takes time quadratic in an array's length.
struct JsonRules {
  bool different_keys = false;         ///< no object has a key twice; the parser would keep the last value
  std::optional<int> max_levels = {};  ///< of nesting: values are written and copied by recursion
};

/// Throws InputError, beginning with `source_name`, when the text breaks a rule. Says nothing of text that is
/// no JSON, from where its grammar ends. O(length), without building values.
void require_structure(std::string_view text, const std::string& source_name, const JsonRules& rules);

/// Returns JSON text for people and programs. An array or object of scalars is one line, so each op of a
/// schedule is a line. Ends in a newline.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace starpipe::plan
