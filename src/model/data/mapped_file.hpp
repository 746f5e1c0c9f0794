// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace starpipe::model {

/// A whole file, read only. It is mapped, so that it may be larger than memory and the ranks of a host share
/// one copy. Thread-safe.
class MappedFile {
 public:
  /// Throws InputError with the file when it is missing, unreadable or no regular file. Does not wait for the
  /// writer of a pipe.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::span<const unsigned char> bytes() const { return bytes_; }

  /// Throws InputError with the file when it has become shorter since it was opened. Call it before bytes are
  /// read: behind the end of its file, a mapping ends the process (SIGBUS).
  void require_whole() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::span<const unsigned char> bytes_;
};

}  // namespace starpipe::model
