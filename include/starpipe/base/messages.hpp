// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace starpipe {

/// Writes text on standard error at once. Throws nothing: a message is not a result, so a run goes on when
/// standard error is closed, or a file on a full disk. Thread-safe.
void print_message(std::string_view text) noexcept;

/// The text as one line that any terminal shows: control characters become spaces, and bytes that are not
/// UTF-8 become \xNN. Messages quote what users wrote, and that may be anything.
std::string one_line(std::string_view text);

/// Opens /dev/null as standard input, output and error where they are closed. Otherwise the next file that
/// is opened would take their place, and receive what is meant for them. Writing to a standard output
/// that was closed still fails: a result that nobody gets is an error. A program calls this function from
/// `.preinit_array`, before the constructors of shared libraries, since some of these open files.
void open_closed_streams() noexcept;

}  // namespace starpipe
