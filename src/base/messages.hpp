// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace starpipe {

/// Writes text on standard error at once. It replaces a progress line on a terminal. Throws nothing: a
/// message is not a result, so a run continues when standard error is closed, is a file on a full disk, or a
/// pipe whose reader has ended.
/// Thread-safe.
void print_message(std::string_view text) noexcept;

/// Returns the text as one line for messages, which quote what users wrote. Control characters become spaces.
/// Bytes that are not UTF-8 become \xNN, with their value NN in hexadecimal.
std::string one_line(std::string_view text);

/// Returns the text with a text in place of each character that has one.
std::string with_replaced(std::string_view text,
                          std::initializer_list<std::pair<char, std::string_view>> replacements);

/// Opens /dev/null as standard input, output and error where they are closed. Otherwise the next file that
/// is opened would take their place, and receive what is meant for them. Standard output is opened for
/// reading: writing to it fails, as it would without this function, so that a lost result is an error. A
/// program calls this function from `.preinit_array`: constructors of shared libraries come later, and some
/// of them open files.
void open_closed_streams() noexcept;

/// One line on standard error that says how far some work is. A terminal shows one line that is rewritten in
/// place, until a message or a result replaces it; a log gets only the lines that are kept.
class ProgressLine {
 public:
  ProgressLine();

  [[nodiscard]] bool on_terminal() const { return terminal_; }
  /// Replaces the line on a terminal; does nothing elsewhere.
  void show(std::string_view text) const;
  /// Replaces the line and ends it: `text` stays, on a terminal and in a log.
  void keep(std::string_view text) const;
  /// Removes the line from a terminal; does nothing elsewhere.
  void clear() const { show(""); }

 private:
  bool terminal_;
};

enum class Align { left, right };

/// How a table shows one of its columns.
struct TableColumn {
  Align align = Align::right;
  std::size_t min_width = 0;  ///< characters; a wider cell widens the column
};

/// The cells of one line. The headings are a row like any other.
using TableRow = std::vector<std::string>;

/// Returns a table as text, one line per row, with two spaces between columns. Each column is as wide as its
/// widest cell, and at least `min_width`. Columns without an entry in `columns` are aligned right. A
/// left-aligned last column is not padded. Rows may have fewer cells than others. Cells are ASCII.
std::string table_text(std::span<const TableRow> rows, std::span<const TableColumn> columns = {});

/// Returns the rows as CSV (RFC 4180, with a newline alone at the end of each line): cells with commas,
/// quotes or line breaks are quoted.
std::string csv_text(std::span<const TableRow> rows);

}  // namespace starpipe
