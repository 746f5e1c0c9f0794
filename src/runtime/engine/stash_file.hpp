// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <vector>

#include "starpipe/model/memory_view.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// The stashes of this rank whose home is a disk. They lie in one file, which has no name once it is open: so
/// it goes with the process, however that ends. A stash takes its place in the file from its `write` to its
/// `read`, and later stashes of the same size use the place again. Thread-safe; each stash is written once,
/// then read once.
class StashFile {
 public:
  /// Throws InputError that names `runtime.stash_folder` if no file can be made in the folder.
  explicit StashFile(std::filesystem::path folder);
  ~StashFile();
  StashFile(const StashFile&) = delete;
  StashFile& operator=(const StashFile&) = delete;

  /// `offload`: the O of the stash. Both throw RunFailure, with one line that names the folder and the cause,
  /// if the system cannot write or read: the disk is full, for example.
  void write(plan::JobId offload, model::ConstMemory stash);
  void read(plan::JobId offload, model::Memory stash);

  /// Returns the size of the file: the largest number of bytes that stashes took at once.
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  [[noreturn]] void fail(const char* what, int error) const;
  std::uint64_t take(plan::JobId offload, std::uint64_t bytes);

  std::filesystem::path folder_;
  int file_ = -1;
  mutable std::mutex mutex_;  // guards the members below
  std::uint64_t end_ = 0;
  std::map<plan::JobId, std::uint64_t> places_;               // where a stash begins
  std::map<std::uint64_t, std::vector<std::uint64_t>> free_;  // by size
};

}  // namespace starpipe::runtime
