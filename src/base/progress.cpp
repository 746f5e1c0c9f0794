// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/progress.hpp"

#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

namespace starpipe {
namespace {

constexpr const char* rewrite = "\r\x1b[K";  // back to the line's start, and erase what it shows

}  // namespace

ProgressLine::ProgressLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void ProgressLine::show(std::string_view text) const {
  if (!terminal_) return;
  fmt::print(stderr, "{}{}", rewrite, text);
  std::fflush(stderr);
}

void ProgressLine::keep(std::string_view text) const {
  fmt::print(stderr, "{}{}\n", terminal_ ? rewrite : "", text);
  std::fflush(stderr);
}

}  // namespace starpipe
