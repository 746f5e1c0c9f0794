// SPDX-License-Identifier: Apache-2.0
// Files that survive the end of the process and of the machine.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace starpipe {

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
  [[noreturn]] void fail(int error) const;

  std::filesystem::path file_;
  int descriptor_ = -1;
};

/// Waits until the names in a folder (files created, renamed and removed) are on the disk. Throws
/// std::runtime_error with the folder and the reason.
void sync_folder(const std::filesystem::path& folder);

/// Waits until what any process has written to an existing file is on the disk. Throws as `sync_folder` does.
void sync_file(const std::filesystem::path& file);

}  // namespace starpipe
