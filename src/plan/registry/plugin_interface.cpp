// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/registry/plugin_interface.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/numbers.hpp"

namespace starpipe::plan {
namespace {

constexpr InterfaceText own_interface = interface_text();

struct Part {
  std::string_view key;  // empty for the version, which is first
  std::string_view value;
};

std::vector<Part> parts_of(std::string_view text) {
  std::vector<Part> parts;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      parts.push_back({"", part});
    } else {
      parts.push_back({part.substr(0, equals), part.substr(equals + 1)});
    }
  }
  return parts;
}

std::string with_blanks(std::string_view text) {
  std::string result(text);
  std::ranges::replace(result, '-', ' ');
  return result;
}

std::string_view value_of(const std::vector<Part>& parts, std::string_view key) {
  const auto found = std::ranges::find(parts, key, &Part::key);
  return found == parts.end() ? "unknown" : found->value;
}

}  // namespace

std::string interface_difference(std::string_view theirs) {
  if (theirs == own_interface.view()) return {};
  const std::vector<Part> own = parts_of(own_interface.view());
  const std::vector<Part> other = parts_of(theirs);
  // In the order of starpipe's own parts; then parts that only the plug-in has.
  std::vector<std::string_view> keys;
  for (const Part& part : own) keys.push_back(part.key);
  for (const Part& part : other) {
    if (std::ranges::find(keys, part.key) == keys.end()) keys.push_back(part.key);
  }
  std::erase_if(keys, [&](std::string_view key) { return value_of(own, key) == value_of(other, key); });
  if (keys.empty()) return "the parts of the interface are in another order";
  const std::string_view key = keys.front();
  std::string text =
      fmt::format("{}: {} in the plug-in, {} in starpipe", key.empty() ? "version" : with_blanks(key),
                  with_blanks(value_of(other, key)), with_blanks(value_of(own, key)));
  if (keys.size() > 1)
    text += ", and " + counted_text(static_cast<std::int64_t>(keys.size()) - 1, "more difference");
  return text;
}

}  // namespace starpipe::plan
