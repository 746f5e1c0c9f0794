// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

namespace starpipe {

/// The content of a text file, a pipe or what is typed in a terminal. Throws InputError with the file when it
/// cannot be read, when it has more than 1 GiB, and when it is a device: /dev/zero has no end.
std::string read_file(const std::filesystem::path& file);

/// Checks that the suffix of `file`, the part of its name from the last dot on, is one of `suffixes`, which
/// are in lower case. The comparison ignores case. A file without a suffix passes; a file named ".json" has
/// the suffix ".json". Throws InputError, naming `option` and the suffixes, for any other suffix: the content
/// would not be of the format that the name stands for.
void require_suffix(std::string_view option, const std::filesystem::path& file,
                    std::span<const std::string_view> suffixes);
/// The suffix of a file's name in lower case, with its dot; empty when there is none.
std::string suffix_of(const std::filesystem::path& file);

/// The file that `write_file` replaces: for a symbolic link its target, which need not exist. For links that
/// form a circle, one of them.
std::filesystem::path target_of(const std::filesystem::path& file);

/// Whether the name means standard output: "-" or /dev/stdout.
bool is_standard_output(const std::filesystem::path& file);

/// Checks that `file` can be written, and leaves no trace of the check. Throws InputError with `option` and
/// the reason when it cannot.
void require_writable(std::string_view option, const std::filesystem::path& file);

/// Writes `text` to a temporary name beside `file` and renames it, so that nobody ever sees half a file. With
/// a name that means standard output the text is printed. Throws InputError with `option` when the file
/// cannot be created because of its name or its rights, and std::runtime_error when the disk is full or
/// fails; the temporary file is removed.
void write_file(std::string_view option, const std::filesystem::path& file, std::string_view text);
/// Like the function above; `write` puts the text into the stream, piece by piece. An exception of `write`
/// goes through, and leaves no file.
void write_file(std::string_view option, const std::filesystem::path& file,
                const std::function<void(std::ostream&)>& write);

/// Prints to standard output. Throws std::runtime_error when it cannot be written, as with a full disk.
void print(std::string_view text);

}  // namespace starpipe
