// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace starpipe::runtime {

/// Throws InputError naming the file when it cannot be read.
std::string read_file(const std::filesystem::path& file);

/// Throws InputError naming `option` and the reason when `file` could not be written. Leaves no trace.
void require_writable(std::string_view option, const std::filesystem::path& file);

/// To a temporary name beside `file`, then renamed, so that nobody ever sees half a file. Throws InputError
/// naming `option` when the file cannot be made, std::runtime_error when writing fails half-way.
void write_file(std::string_view option, const std::filesystem::path& file, std::string_view text);

/// To standard output; throws std::runtime_error when it takes no more.
void print(std::string_view text);

}  // namespace starpipe::runtime
