// SPDX-License-Identifier: Apache-2.0
#include "cli/tables.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace starpipe::cli {

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      text += fmt::format("{}{:>{}}", c == 0 ? "" : "  ", row[c], widths[c]);
    }
    text += '\n';
  }
  return text;
}

}  // namespace starpipe::cli
