// SPDX-License-Identifier: Apache-2.0
// The names in a folder of checkpoints:
//
//   lock                              held by the run that writes here (folder_lock.hpp)
//   step-00000040/manifest.json       a checkpoint: the directory gets this name when it is whole
//   step-00000040/rank-0003.safetensors
//   step-00000040.2/                  a second checkpoint of step 40
//   step-00000050.writing/            a checkpoint that is being written
//   step-00000010.removing/           a checkpoint that is being removed
//   step-00000060.damaged/            set aside: a resumed run could not read it
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace starpipe::runtime {

inline constexpr const char* manifest_name = "manifest.json";

/// A directory that has the name of a checkpoint. Later ones are greater.
struct CheckpointDirectory {
  std::int64_t step = 0;
  int generation = 1;  ///< of the checkpoints of this step
  std::filesystem::path path;

  auto operator<=>(const CheckpointDirectory&) const = default;
};

/// Where a checkpoint of this step is written, until it is whole.
std::filesystem::path writing_directory(const std::filesystem::path& folder, std::int64_t step);
/// The first name in `folder`, with the step and perhaps an ending, that nothing has: step-00000040,
/// step-00000040.2, ... and with the ending ".damaged" step-00000040.damaged, step-00000040.damaged.2, ...
std::filesystem::path free_directory(const std::filesystem::path& folder, std::int64_t step,
                                     const std::string& ending = {});
/// The file of a rank.
std::string part_name(int rank);

/// The name of a checkpoint's directory while it is being removed.
std::filesystem::path removing_directory(const std::filesystem::path& checkpoint);

/// What a folder holds.
struct FolderContent {
  std::vector<CheckpointDirectory> checkpoints;  ///< whole when they got their names; newest first
  std::vector<CheckpointDirectory> unfinished;   ///< those that are being written or removed
};
/// Reads the names. A folder that does not exist is empty. Throws InputError with the folder when it cannot
/// be read.
FolderContent content_of(const std::filesystem::path& folder);

}  // namespace starpipe::runtime
