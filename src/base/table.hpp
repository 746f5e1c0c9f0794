// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace starpipe {

enum class Align { left, right };

/// How a table shows one of its columns.
struct TableColumn {
  Align align = Align::right;
  std::size_t least_width = 0;  ///< characters; a wider cell widens the column
};

/// The cells of one line. The headings are a row like any other.
using TableRow = std::vector<std::string>;

/// A table as text, one line a row, with two spaces between columns. Each column is as wide as its widest
/// cell, and at least `least_width`. Columns without an entry in `columns` are aligned right. A left-aligned
/// last column is not padded. Rows may have fewer cells than others. Cells are ASCII.
std::string table_text(std::span<const TableRow> rows, std::span<const TableColumn> columns = {});

/// The rows as CSV (RFC 4180, with a newline alone at the end of each line): cells with commas, quotes or
/// line breaks are quoted.
std::string csv_text(std::span<const TableRow> rows);

}  // namespace starpipe
