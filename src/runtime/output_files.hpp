// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace starpipe::runtime {

/// Throws InputError naming `option` and the file unless a file can be created beside it.
void check_writable(const std::filesystem::path& file, const std::string& option);

/// Writes to a temporary name beside `file`, then renames: nobody ever sees half a file. Throws
/// std::runtime_error naming the file.
void write_whole_file(const std::filesystem::path& file, const std::string& text);

}  // namespace starpipe::runtime
