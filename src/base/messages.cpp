// SPDX-License-Identifier: Apache-2.0
#include "base/messages.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/signals.hpp"

namespace starpipe {
namespace {

constexpr const char* rewrite = "\r\x1b[K";  // back to the line's start, and erase what it shows

std::atomic<bool> shows_progress = false;  // a terminal shows a line of progress, which has not ended

void write_on_error(std::string_view text) noexcept {
  const HeldPipeSignal held;
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

unsigned char byte_at(std::string_view text, std::size_t i) { return static_cast<unsigned char>(text[i]); }

/// Returns the number of bytes of the UTF-8 character with which the text begins. Returns 0 where it begins
/// with none, or with one that XML does not have (U+FFFE and U+FFFF).
std::size_t utf8_length(std::string_view text) {
  const unsigned char lead = byte_at(text, 0);
  const std::size_t length = lead < 0x80                    ? 1
                             : lead >= 0xc2 && lead <= 0xdf ? 2
                             : lead >= 0xe0 && lead <= 0xef ? 3
                             : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                            : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte_at(text, i) & 0xc0U) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and numbers beyond Unicode.
  const unsigned char second = length > 2 ? byte_at(text, 1) : 0;
  const bool exists = !(lead == 0xe0 && second < 0xa0) && !(lead == 0xed && second >= 0xa0) &&
                      !(lead == 0xf0 && second < 0x90) && !(lead == 0xf4 && second >= 0x90);
  return !exists || text.starts_with("\xef\xbf\xbe") || text.starts_with("\xef\xbf\xbf") ? 0 : length;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      line += fmt::format("\\x{:02x}", byte_at(text, 0));
    } else if (byte_at(text, 0) < 0x20 || byte_at(text, 0) == 0x7f) {
      line += ' ';
    } else {
      line += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return line;
}

std::string with_replaced(std::string_view text,
                          std::initializer_list<std::pair<char, std::string_view>> replacements) {
  std::string result;
  for (const char c : text) {
    const auto* const found = std::ranges::find(replacements, c, &std::pair<char, std::string_view>::first);
    result += found == replacements.end() ? std::string_view(&c, 1) : found->second;
  }
  return result;
}

void print_message(std::string_view text) noexcept {
  if (shows_progress.exchange(false)) write_on_error(rewrite);
  write_on_error(text);
}

void open_closed_streams() noexcept {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    // `open` takes the lowest free number, which is this one: those below it are open. Writing a result to
    // standard output must fail, as it would with the stream closed.
    if (::open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_RDWR) == -1) return;
  }
}

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(std::string_view text) const {
  if (!terminal_) return;
  shows_progress = !text.empty();
  write_on_error(fmt::format("{}{}", rewrite, text));
}

void ProgressLine::keep(std::string_view text) const {
  shows_progress = false;
  write_on_error(fmt::format("{}{}\n", terminal_ ? rewrite : "", text));
}

std::string table_text(std::span<const TableRow> rows, std::span<const TableColumn> columns) {
  std::vector<TableColumn> shown(columns.begin(), columns.end());
  for (const TableRow& row : rows) {
    shown.resize(std::max(shown.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) {
      shown[c].min_width = std::max(shown[c].min_width, row[c].size());
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
