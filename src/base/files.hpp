// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/signals.hpp"

namespace starpipe {

/// How a pointer of Git LFS begins. It takes the place of a file that was not fetched.
inline constexpr std::string_view lfs_pointer = "version https://git-lfs.github.com/spec/";

/// Returns the content of a text file, a pipe or what is typed in a terminal. Throws InputError with the file
/// when it cannot be read, when it has more than 1 GiB, and when it is a device: /dev/zero has no end.
std::string read_file(const std::filesystem::path& file);

/// Returns the content of a file, or its part before an error; "" if it cannot be opened. For a file that may
/// disappear while it is read, such as a process's in /proc.
std::string readable_part(const std::filesystem::path& file);

/// Checks that the suffix of `file`, the part of its name from the last dot on, is one of `suffixes`, which
/// are in lower case. The comparison ignores case. A file without a suffix passes; a file named ".json" has
/// the suffix ".json". Throws InputError, naming `option` and the suffixes, for any other suffix: the content
/// would not be of the format that the name stands for.
void require_suffix(std::string_view option, const std::filesystem::path& file,
                    std::span<const std::string_view> suffixes);
/// Returns the suffix of a file's name in lower case, with its dot, or an empty text.
std::string suffix_of(const std::filesystem::path& file);

/// Returns the file that `write_file` replaces: for a symbolic link its target, which need not exist. For
/// links that form a circle, one of them.
std::filesystem::path target_of(const std::filesystem::path& file);

/// True if the name means standard output: "-" or /dev/stdout.
bool is_standard_output(const std::filesystem::path& file);

/// Checks that `file` can be written, and leaves no trace of the check. Throws InputError with `option` and
/// the reason when it cannot.
void require_writable(std::string_view option, const std::filesystem::path& file);

/// Writes `text` to a temporary name in the folder of `file` and renames it, so that a reader never sees half
/// a file. If `file` cannot be replaced, for instance because it is a mount point (docker run -v FILE), the
/// bytes are copied into it. With a name that means standard output the text is printed. Throws InputError
/// with `option` if the file cannot be created because of its name or its rights, and std::runtime_error if
/// the disk is full or fails. The temporary file is removed then, unless it was complete: then the message
/// names it.
void write_file(std::string_view option, const std::filesystem::path& file, std::string_view text);
/// Does the same; `write` puts the text into the stream, piece by piece. An exception of `write`
/// goes through, and leaves no file.
void write_file(std::string_view option, const std::filesystem::path& file,
                const std::function<void(std::ostream&)>& write);

/// True if `write_file` replaces `file`, which need not exist. False if its bytes go straight into it: into a
/// device, a pipe or standard output.
bool is_replaced(const std::filesystem::path& file);

/// A file that is written under a temporary name in its folder and then renamed: the steps of `write_file`,
/// with the same errors, for a file that `is_replaced`. Other processes may write to the temporary name, too.
class NewFile {
 public:
  /// Checks that `file` can be written. `option`: for messages.
  NewFile(std::string option, std::filesystem::path file);
  /// Removes the temporary file unless `finish` has renamed it.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Returns the temporary name, or the name of a device or a pipe.
  [[nodiscard]] const std::filesystem::path& path() const { return temporary_; }
  /// Creates the file empty, and opens it.
  [[nodiscard]] std::ofstream open() const;
  /// Gives the file its name when its bytes are written.
  void finish();
  /// Returns the message that the file cannot be written. `error`: an errno.
  [[nodiscard]] std::string problem(int error) const;

 private:
  std::string option_;
  std::filesystem::path file_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;
  std::unique_ptr<RemovedOnSignal> removed_;  // nullptr when nothing is to be removed
};

/// Writes to places of an existing file, which other processes may write at the same time. Throws
/// std::runtime_error with `option` and `name`, for messages, and the system's reason. Not thread-safe.
class PlacedWriter {
 public:
  PlacedWriter(std::string_view option, const std::filesystem::path& name, const std::filesystem::path& file);
  ~PlacedWriter();
  PlacedWriter(const PlacedWriter&) = delete;
  PlacedWriter& operator=(const PlacedWriter&) = delete;

  void write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Network file systems report a full disk when a file is closed.
  void close();

 private:
  void require(bool holds) const;

  std::string problem_;
  int descriptor_ = -1;
};

/// Prints to standard output. Throws std::runtime_error when it cannot be written, as with a full disk.
void print(std::string_view text);

/// A new folder for temporary files, removed with all that is in it. Throws std::system_error when none can
/// be made. Hold signals (HeldSignals) while it lives.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Files that survive the end of the process and of the machine.

/// Writes a new file, piece by piece. `finish` puts its bytes on the disk; `sync_folder` of its folder then
/// puts its name there, too. The destructor removes a file that is not finished. Throws std::runtime_error
/// with the file and the system's reason. Not thread-safe.
class DurableFile {
 public:
  /// Creates the file. Removes an existing file of this name first. Another process may still have that file
  /// open: what it writes there does not reach the new one.
  explicit DurableFile(std::filesystem::path file);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  /// Waits until all bytes are on the disk, and closes the file.
  void finish();

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
};

/// Waits until the names in a folder (files created, renamed and removed) are on the disk. Throws
/// std::runtime_error with the folder and the reason.
void sync_folder(const std::filesystem::path& folder);

/// Waits until what any process has written to an existing file is on the disk. Throws as `sync_folder` does.
void sync_file(const std::filesystem::path& file);

}  // namespace starpipe
