// SPDX-License-Identifier: Apache-2.0
#include "base/table.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace starpipe {

std::string table_text(std::span<const TableRow> rows, std::span<const TableColumn> columns) {
  std::vector<TableColumn> shown(columns.begin(), columns.end());
  for (const TableRow& row : rows) {
    shown.resize(std::max(shown.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) {
      shown[c].least_width = std::max(shown[c].least_width, row[c].size());
    }
  }
  std::string text;
  for (const TableRow& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const auto [align, width] = shown[c];
      if (c > 0) text += "  ";
      if (align == Align::right) {
        fmt::format_to(std::back_inserter(text), "{:>{}}", row[c], width);
      } else {
        fmt::format_to(std::back_inserter(text), "{:<{}}", row[c], c + 1 < shown.size() ? width : 0);
      }
    }
    text += '\n';
  }
  return text;
}

std::string csv_text(std::span<const TableRow> rows) {
  std::string text;
  for (const TableRow& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (c > 0) text += ',';
      if (row[c].find_first_of(",\"\r\n") == std::string::npos) {
        text += row[c];
        continue;
      }
      text += '"';
      for (const char letter : row[c]) text.append(letter == '"' ? 2 : 1, letter);
      text += '"';
    }
    text += '\n';
  }
  return text;
}

}  // namespace starpipe
