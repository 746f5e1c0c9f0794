// SPDX-License-Identifier: Apache-2.0
#include "cli/input/yaml.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files.hpp"
#include "base/numbers.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/interval.hpp"

namespace starpipe::cli {

YamlValue YamlValue::in_file(const YAML::Node& node, const std::string& file) {
  YamlValue value(node, file);
  value.file_ = file;
  return value;
}

std::vector<YamlValue> YamlValue::items(std::string_view what) const {
  if (!node_.IsSequence()) expected(what);
  std::vector<YamlValue> items;
  for (const YAML::Node& item : node_) items.emplace_back(item, label());
  return items;
}

std::vector<YamlValue> YamlValue::items_in(const std::string& file, std::string_view what) const {
  if (!node_.IsSequence() || node_.size() == 0) expected(what);
  std::vector<YamlValue> items;
  for (const YAML::Node& item : node_) {
    items.emplace_back(item, position_of(file, item),
                       path_.empty() ? "" : fmt::format("{}[{}]", path_, items.size()));
  }
  return items;
}

void YamlValue::fail(std::string_view message) const {
  throw InputError(fmt::format("{}: {}", label(), message));
}

void YamlValue::fail_at(const YAML::Node& key, std::string_view message) const {
  if (file_.empty()) fail(message);
  throw InputError(fmt::format("{}: {}", position_of(file_, key), message));
}

void YamlValue::expected(std::string_view what) const {
  fail(fmt::format("expected {}, got {}", what, described(node_)));
}

template <class Integer>
Integer YamlValue::whole(Integer min, Integer max) const {
  if (!node_.IsScalar()) expected("an integer");
  const std::string& text = node_.Scalar();
  // First as a signed number, so that a negative number is reported as too small and not as a word. Not with
  // yaml-cpp's own conversions: they read 010 as eight, and report a number out of range as a wrong type.
  std::errc error{};
  if (!parse_number<std::int64_t>(text, error)) expected("an integer");
  const std::string problem =
      range_problem(text, static_cast<std::uint64_t>(min), static_cast<std::uint64_t>(max));
  const auto value = parse_number<Integer>(text, error);
  if (!value || !problem.empty()) fail(problem);
  return *value;
}

template int YamlValue::whole<int>(int, int) const;
template std::uint64_t YamlValue::whole<std::uint64_t>(std::uint64_t, std::uint64_t) const;

double YamlValue::number(const Interval& interval) const {
  if (!node_.IsScalar()) expected("a number");
  std::errc error{};
  const auto value = parse_number<double>(node_.Scalar(), error);
  if (!value) expected("a number");
  if (error != std::errc{} || !std::isfinite(*value)) expected("a finite number");
  if (!interval.contains(*value)) fail(fmt::format("must be {}, got {}", interval.text(), node_.Scalar()));
  return *value;
}

bool YamlValue::boolean() const {
  bool value = false;
  if (!node_.IsScalar() || !YAML::convert<bool>::decode(node_, value)) expected("true or false");
  return value;
}

std::uint64_t YamlValue::bytes() const {
  if (!node_.IsScalar()) expected(bytes_words);
  const auto bytes = bytes_in(node_.Scalar());
  if (!bytes) expected(bytes_words);
  return *bytes;
}

std::optional<double> YamlValue::seconds() const {
  if (!node_.IsScalar()) return std::nullopt;
  std::string_view text = node_.Scalar();
  for (const auto& [unit, per_second] : {std::pair{"us", 1e6}, {"ms", 1e3}, {"s", 1.0}}) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(std::string_view(unit).size());
    while (text.ends_with(' ')) text.remove_suffix(1);
    std::errc error{};
    const auto value = parse_number<double>(text, error);
    if (!value) return std::nullopt;
    // Divided, so that 500us is the number that 0.0005s is.
    if (error != std::errc{} || !amounts.contains(*value)) expected("a time of " + amounts.text());
    return *value / per_second;
  }
  return std::nullopt;
}

double YamlValue::time() const {
  if (const auto found = seconds()) return *found;
  expected("a time such as 2ms (units: s, ms, us)");
}

Quantity YamlValue::time_or_number() const {
  if (const auto found = seconds()) return {*found, true};
  std::errc error{};
  if (!node_.IsScalar() || !parse_number<double>(node_.Scalar(), error)) {
    expected("a number, or a time such as 2ms (units: s, ms, us)");
  }
  return {number(amounts), false};
}

Quantity YamlValue::bandwidth() const {
  constexpr const char* wanted = "a bandwidth such as 25GB/s or 100Gbit/s";
  constexpr Interval max = {.min = 0, .max = amounts.max, .above = true};
  std::errc error{};
  if (node_.IsScalar() && parse_number<double>(node_.Scalar(), error)) return {number(max), false};
  if (!node_.IsScalar() || !node_.Scalar().ends_with("/s")) expected(wanted);
  std::string_view text = node_.Scalar();
  text.remove_suffix(2);
  double scale = 1;
  if (text.ends_with("bit")) {
    text.remove_suffix(3);
    scale = 1 / 8.0;
  } else if (text.ends_with('B')) {
    text.remove_suffix(1);
  } else {
    expected(wanted);
  }
  constexpr double kibi = 1024;
  for (const auto& [prefix, factor] : {std::pair{"Ki", kibi},
                                       {"Mi", kibi * kibi},
                                       {"Gi", kibi * kibi * kibi},
                                       {"Ti", kibi * kibi * kibi * kibi},
                                       {"k", 1e3},
                                       {"M", 1e6},
                                       {"G", 1e9},
                                       {"T", 1e12}}) {
    if (!text.ends_with(prefix)) continue;
    text.remove_suffix(std::string_view(prefix).size());
    scale *= factor;
    break;
  }
  while (text.ends_with(' ')) text.remove_suffix(1);
  const auto value = parse_number<double>(text, error);
  if (!value) expected(wanted);
  if (error != std::errc{} || !max.contains(*value)) expected("a bandwidth " + max.text());
  return {*value * scale, true};
}

std::string YamlValue::word() const {
  if (!node_.IsScalar() || node_.Scalar().empty()) expected("a word");
  return node_.Scalar();
}

std::string YamlValue::one_of(const std::vector<std::string>& words) const {
  std::string value = word();
  if (std::ranges::find(words, value) != words.end()) return value;
  fail(fmt::format("{} is not one of {}", described(node_), fmt::join(words, ", ")));
}

std::optional<std::uint64_t> bytes_in(const std::string& text) {
  // CLI11 knows the units, but would read 0x10 as 16 and 010 as 8.
  const auto digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (digits == 0 || text.find_first_of("0123456789", digits) != std::string::npos) return std::nullopt;
  std::string number = text.substr(std::min(text.find_first_not_of('0'), digits - 1));
  try {
    static_cast<void>(CLI::AsSizeValue(true)(number));
  } catch (const CLI::Error&) {
    return std::nullopt;
  }
  std::errc error{};
  const auto bytes = parse_number<std::uint64_t>(number, error);
  return error == std::errc{} ? bytes : std::nullopt;
}

std::string position_of(const std::string& file, const YAML::Node& node) {
  return fmt::format("{}:{}", file, node.Mark().line + 1);
}

YAML::Node load_yaml(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1) {
      throw InputError(fmt::format("{}: a second document, only one is expected",
                                   position_of(file.string(), documents[1])));
    }
    return documents.empty() ? YAML::Node() : documents.front();
  } catch (const YAML::Exception& error) {
    throw InputError(fmt::format("{}:{}: not YAML: {}", file.string(), error.mark.line + 1, error.msg));
  }
}

std::set<std::string> read_map(const YamlValue& map, std::span<const std::string_view> names,
                               const std::function<void(std::size_t key, const YamlValue& value)>& read) {
  if (!map.node().IsMap()) map.expected(fmt::format("a map of {}", fmt::join(names, ", ")));
  std::set<std::string> seen;
  for (const auto& pair : map.node()) {
    const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "";
    const auto known = std::ranges::find(names, name);
    if (known == names.end()) {
      map.fail_at(pair.first,
                  fmt::format("unknown key {} (known: {})", described(pair.first), fmt::join(names, ", ")));
    }
    if (!seen.insert(name).second) map.fail_at(pair.first, name + " is given twice");
    read(static_cast<std::size_t>(known - names.begin()), map.member(name, pair.second));
  }
  return seen;
}

std::string described(const YAML::Node& node) {
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return node.size() == 0 ? "an empty map" : "a map";
  if (!node.IsScalar()) return "nothing";
  const std::string& text = node.Scalar();
  constexpr std::size_t max = 60;
  return text.size() <= max ? fmt::format("'{}'", text) : fmt::format("'{}...'", text.substr(0, max));
}

}  // namespace starpipe::cli
