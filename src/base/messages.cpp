// SPDX-License-Identifier: Apache-2.0
#include "starpipe/base/messages.hpp"

#include <cstdio>

#include <fcntl.h>
#include <unistd.h>

namespace starpipe {

void print_message(std::string_view text) noexcept {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void open_closed_streams() noexcept {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    // `open` takes the lowest free number, which is this one: those below it are open.
    if (::open("/dev/null", O_RDWR) == -1) return;
  }
}

}  // namespace starpipe
