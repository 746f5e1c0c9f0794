// SPDX-License-Identifier: Apache-2.0
#include "base/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "base/messages.hpp"

namespace starpipe {
namespace {

constexpr const char* rewrite = "\r\x1b[K";  // back to the line's start, and erase what it shows

}  // namespace

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(std::string_view text) const {
  if (!terminal_) return;
  print_message(fmt::format("{}{}", rewrite, text));
}

void ProgressLine::keep(std::string_view text) const {
  print_message(fmt::format("{}{}\n", terminal_ ? rewrite : "", text));
}

}  // namespace starpipe
