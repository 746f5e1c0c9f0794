// SPDX-License-Identifier: Apache-2.0
#include "plan/formats/json_text.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace starpipe::plan {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t columns = 100;

// Words and numbers, several on a line.
void write_filled(const ordered_json& array, std::size_t indent, std::string& text) {
  text += '[';
  std::size_t column = columns;
  for (std::size_t i = 0; i < array.size(); ++i) {
    const std::string item = array[i].dump(-1, ' ', false, ordered_json::error_handler_t::replace) +
                             (i + 1 < array.size() ? "," : "");
    if (column + 1 + item.size() > columns) {
      text += '\n';
      text.append(indent + 2, ' ');
      column = indent + 2;
    } else {
      text += ' ';
      ++column;
    }
    text += item;
    column += item.size();
  }
  text += '\n';
  text.append(indent, ' ');
  text += ']';
}

void write(const ordered_json& value, std::size_t indent, std::size_t before, std::string& text) {
  // Only short containers can fit on one line. Trying no others bounds the work at each level.
  if (!value.is_structured() || value.size() <= columns / 2) {
    const std::string line = value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    if (!value.is_structured() || value.empty() || before + line.size() + 1 <= columns) {
      // Adds a blank after each separator of the line, but not inside strings.
      bool in_string = false;
      for (std::size_t i = 0; i < line.size(); ++i) {
        text += line[i];
        if (line[i] == '\\') {
          text += line[++i];
        } else if (line[i] == '"') {
          in_string = !in_string;
        } else if (!in_string && (line[i] == ',' || line[i] == ':')) {
          text += ' ';
        }
      }
      return;
    }
  }
  if (value.is_array() && std::ranges::none_of(value, &ordered_json::is_structured)) {
    write_filled(value, indent, text);
    return;
  }
  text += value.is_array() ? '[' : '{';
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    if (!first) text += ',';
    first = false;
    text += '\n';
    text.append(indent + 2, ' ');
    std::size_t column = indent + 2;
    if (value.is_object()) {
      const std::string name =
          ordered_json(key).dump(-1, ' ', false, ordered_json::error_handler_t::replace) + ": ";
      text += name;
      column += name.size();
    }
    write(item, indent + 2, column, text);
  }
  text += '\n';
  text.append(indent, ' ');
  text += value.is_array() ? ']' : '}';
}

}  // namespace

std::string json_text(const ordered_json& value) {
  std::string text;
  write(value, 0, 0, text);
  return text + "\n";
}

}  // namespace starpipe::plan
