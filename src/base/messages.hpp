// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace starpipe {

/// Writes text on standard error at once. Throws nothing: a message is not a result, so a run goes on when
/// standard error is closed, or a file on a full disk. Thread-safe.
void print_message(std::string_view text) noexcept;

/// The text as one line for messages, which quote what users wrote. Control characters become spaces. Bytes
/// that are not UTF-8 become \xNN, with their value NN in hexadecimal.
std::string one_line(std::string_view text);

/// Opens /dev/null as standard input, output and error where they are closed. Otherwise the next file that
/// is opened would take their place, and receive what is meant for them. Standard output is opened for
/// reading: writing to it fails, as it would without this function, so that a lost result is an error. A
/// program calls this function from `.preinit_array`: constructors of shared libraries come later, and some
/// of them open files.
void open_closed_streams() noexcept;

}  // namespace starpipe
