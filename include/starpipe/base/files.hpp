// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace starpipe {

/// Throws InputError naming the file when it cannot be read.
std::string read_file(const std::filesystem::path& file);

/// Throws InputError naming `option` and the reason when `file` could not be written. Leaves no trace.
void require_writable(std::string_view option, const std::filesystem::path& file);

/// To a temporary name beside `file`, then renamed, so that nobody ever sees half a file. Throws InputError
/// naming `option` when the file cannot be made, std::runtime_error when writing fails half-way.
void write_file(std::string_view option, const std::filesystem::path& file, std::string_view text);
/// The same for what `write` puts into the stream, piece by piece.
void write_file(std::string_view option, const std::filesystem::path& file,
                const std::function<void(std::ostream&)>& write);

/// To standard output; throws std::runtime_error when it takes no more.
void print(std::string_view text);

}  // namespace starpipe
