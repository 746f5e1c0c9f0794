// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace starpipe::runtime {

/// Keeps a second run from writing checkpoints to the same folder: rank 0 holds a lock on the file `lock` in
/// it. The lock ends with the process, however it ends.
class FolderLock {
 public:
  /// Creates the folder if it is missing, and takes the lock. Throws InputError that names the folder and
  /// the process, host and job that hold the lock, or why the folder cannot be written.
  explicit FolderLock(std::filesystem::path folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Before each checkpoint: takes the lock again if the folder was removed or replaced since. Throws as the
  /// constructor does.
  void renew();
  /// Returns one line if the file system has no locks, so that nothing keeps a second run away; else an empty
  /// string.
  [[nodiscard]] const std::string& warning() const { return warning_; }

 private:
  void take();

  std::filesystem::path folder_;
  std::filesystem::path file_;
  int descriptor_ = -1;
  std::string warning_;
};

}  // namespace starpipe::runtime
