// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/json_value.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/numbers.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::plan {

nlohmann::ordered_json number(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

nlohmann::json parse_json(std::string_view text, const std::string& source_name) {
  // nlohmann's parser takes it for the end of the text.
  if (const auto zero = text.find('\0'); zero != std::string_view::npos)
    throw InputError(fmt::format("{}: byte {} is zero, which no JSON text has", source_name, zero + 1));
  require_structure(text, source_name);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, ...": the number in brackets does not help
    // users.
    const std::string message = error.what();
    const auto end = message.find("] ");
    throw InputError(
        fmt::format("{}: {}", source_name, end == std::string::npos ? message : message.substr(end + 2)));
  }
}

std::string JsonValue::path_to(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  const auto found = value_->find(key);
  if (found == value_->end()) return std::nullopt;
  return JsonValue(*found, path_to(key), *source_name_);
}

JsonValue JsonValue::at(std::string_view key) const {
  const auto found = find(key);
  if (!found) JsonValue(*value_, path_to(key), *source_name_).fail("missing");
  return *found;
}

JsonValue JsonValue::at(std::size_t index) const {
  return {(*value_)[index], fmt::format("{}[{}]", path_, index), *source_name_};
}

const JsonValue& JsonValue::array() const {
  if (!value_->is_array()) expected("an array");
  return *this;
}

const JsonValue& JsonValue::object() const {
  if (!value_->is_object()) expected("an object");
  return *this;
}

void JsonValue::only(std::span<const std::string_view> keys) const {
  for (const auto& [key, value] : object().value_->items()) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    JsonValue(value, path_to(key), *source_name_)
        .fail(fmt::format("unknown key; known: {}", fmt::join(keys, ", ")));
  }
}

int JsonValue::whole(int min) const {
  constexpr int max = std::numeric_limits<int>::max() - 1;
  if (!value_->is_number_integer()) expected("a whole number");
  const std::string problem = range_problem(value_->dump(), index(min), index(max));
  if (!problem.empty()) fail(problem);
  return value_->get<int>();
}

std::uint64_t JsonValue::bytes() const {
  if (!value_->is_number_unsigned()) expected("a number of bytes");
  return value_->get<std::uint64_t>();
}

double JsonValue::number() const {
  if (!value_->is_number()) expected("a number");
  return value_->get<double>();
}

double JsonValue::nanoseconds() const {
  constexpr double max = 1LL << 50;
  if (!value_->is_number_integer()) expected("a whole number of nanoseconds");
  const auto count = value_->get<double>();
  if (std::abs(count) > max) fail("must be at most 2^50 nanoseconds");
  return count * 1e-9;
}

double JsonValue::time() const {
  if (!value_->is_number() || !amounts.contains(value_->get<double>())) {
    expected("a number, " + amounts.text());
  }
  return value_->get<double>();
}

bool JsonValue::truth() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

std::string JsonValue::word() const {
  if (!value_->is_string()) expected("a string");
  return value_->get<std::string>();
}

void JsonValue::fail(const std::string& message) const {
  throw InputError(fmt::format("{}: {}: {}", *source_name_, path_, message));
}

void JsonValue::expected(const std::string& kind) const {
  std::string got;
  if (value_->is_structured()) {
    got = value_->is_array() ? "an array" : "an object";
  } else {
    got = value_->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (got.size() > 40) got = got.substr(0, 40) + "...";
  }
  fail(fmt::format("expected {}, got {}", kind, got));
}

namespace {

/// Follows the events of a parse.
class Structure : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Structure(const std::string& source_name) : source_name_(source_name) {}

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(std::size_t /*size*/) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*size*/) override { return open(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    throw InputError(fmt::format("{}: key '{}' is given twice in one object", source_name_, key));
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    return false;
  }

 private:
  bool open() {
    constexpr std::size_t max_levels = 64;
    keys_.emplace_back();
    if (keys_.size() <= max_levels) return true;
    throw InputError(
        fmt::format("{}: its values are nested in more than {} levels", source_name_, max_levels));
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& source_name_;
  std::vector<std::unordered_set<std::string>> keys_;  // of each object and array that is open
};

}  // namespace

void require_structure(std::string_view text, const std::string& source_name) {
  Structure structure(source_name);
  nlohmann::json::sax_parse(text, &structure);
}

namespace {

using nlohmann::ordered_json;

void write(const ordered_json& value, std::size_t indent, std::string& text) {
  const auto dump = [](const ordered_json& part) {
    return part.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  };
  if (std::ranges::none_of(value, &ordered_json::is_structured)) {
    text += dump(value);
    return;
  }
  text += value.is_array() ? '[' : '{';
  const char* separator = "\n";
  for (const auto& [key, member] : value.items()) {
    text += std::exchange(separator, ",\n");
    text.append(indent + 2, ' ');
    if (value.is_object()) text += dump(key) + ": ";
    write(member, indent + 2, text);
  }
  text += '\n';
  text.append(indent, ' ');
  text += value.is_array() ? ']' : '}';
}

}  // namespace

std::string json_text(const ordered_json& value) {
  std::string text;
  write(value, 0, text);
  return text + "\n";
}

}  // namespace starpipe::plan
