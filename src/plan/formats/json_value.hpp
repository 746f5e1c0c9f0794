// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "starpipe/base/error.hpp"

namespace starpipe::plan {

/// Returns a number that is printed without a decimal point if it is whole: 33, not 33.0.
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

/// Throws InputError, naming `source_name` and the position in `text`, when `text` is not JSON, and as
/// `require_structure` does.
nlohmann::json parse_json(std::string_view text, const std::string& source_name);

/// Throws InputError, beginning with `source_name`, when an object has a key twice (nlohmann's parser would
/// keep the last value), or when values are nested in more than 64 levels (they are written and copied by
/// recursion). Reads up to the first error of grammar, and does not report it. O(length), without building
/// values: the parser's callback could check the same, in time quadratic in an array's length.
void require_structure(std::string_view text, const std::string& source_name);

/// A value in a parsed file, and the path to it for messages, as in "durations[2].F". Refers to the parsed
/// file and the name of the source, which must outlive it. All readers throw InputError, naming source and
/// path, when the value is not of the kind asked for.
class JsonValue {
 public:
  JsonValue(const nlohmann::json& value, std::string path, const std::string& source_name)
      : value_(&value), path_(std::move(path)), source_name_(&source_name) {}

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& source_name() const { return *source_name_; }
  [[nodiscard]] const nlohmann::json& raw() const { return *value_; }

  /// Returns the member `key` of an object, if it has one.
  [[nodiscard]] std::optional<JsonValue> find(std::string_view key) const;
  /// Returns the member `key` of an object, which must have it.
  [[nodiscard]] JsonValue at(std::string_view key) const;
  /// Returns element `index` of an array, which must have it.
  [[nodiscard]] JsonValue at(std::size_t index) const;
  [[nodiscard]] std::size_t size() const { return value_->size(); }

  /// Returns `read(element)` for each element of the value, which must be an array.
  template <class Read>
  [[nodiscard]] auto list(Read read) const {
    std::vector<std::invoke_result_t<Read, const JsonValue&>> all;
    for (std::size_t i = 0; i < array().size(); ++i) all.push_back(read(at(i)));
    return all;
  }

  /// Returns the value itself, which must be an array, or an object.
  const JsonValue& array() const;
  const JsonValue& object() const;

  /// Fails, with the known keys, when the object has a member that is not among `keys`.
  void only(std::span<const std::string_view> keys) const;

  /// Returns a whole number from `min` to the largest int but one: counts derived from it stay in range.
  [[nodiscard]] int whole(int min) const;
  [[nodiscard]] std::uint64_t bytes() const;
  [[nodiscard]] double number() const;
  /// Returns the seconds of a whole number of nanoseconds that may be negative: at most 2^50, about 13 days.
  [[nodiscard]] double nanoseconds() const;
  /// Returns a time: finite and not negative.
  [[nodiscard]] double time() const;
  [[nodiscard]] bool truth() const;
  [[nodiscard]] std::string word() const;
  /// Returns `parse(word)`. Where `parse` throws InputError, fails with `kind` as expected.
  template <class Parse>
  [[nodiscard]] auto parsed(Parse parse, const std::string& kind) const {
    try {
      return parse(word());
    } catch (const InputError&) {
      expected(kind);
    }
  }

  [[noreturn]] void fail(const std::string& message) const;
  /// Fails with "expected <kind>, got <the value>".
  [[noreturn]] void expected(const std::string& kind) const;

 private:
  [[nodiscard]] std::string path_to(std::string_view key) const;

  const nlohmann::json* value_;
  std::string path_;
  const std::string* source_name_;
};

/// Returns JSON text for people and programs. An array or object of scalars is one line, so each op of a
/// schedule is a line. Ends in a newline.
std::string json_text(const nlohmann::ordered_json& value);

}  // namespace starpipe::plan
