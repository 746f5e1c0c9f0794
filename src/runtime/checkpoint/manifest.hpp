// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "starpipe/model/safetensors.hpp"

namespace starpipe::runtime {

/// A file of a checkpoint, written by one rank.
struct PartRecord {
  std::string file;  ///< its name in the checkpoint's directory
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< of the whole file
  std::vector<model::TensorShape> tensors;

  bool operator==(const PartRecord&) const = default;
};

/// The content of a checkpoint. A directory is a checkpoint once its manifest is there.
struct Manifest {
  std::int64_t step = 0;  ///< steps done, at least 0
  nlohmann::json run;     ///< the training loop's own data; any JSON
  std::vector<PartRecord> parts;

  bool operator==(const Manifest&) const = default;
};

/// Returns a part as JSON, in which its rank sends it to rank 0.
nlohmann::json part_to_json(const PartRecord& part);
/// Returns the part. Throws InputError for any other JSON.
PartRecord part_from_json(const nlohmann::json& json);

/// Returns the manifest as text in JSON. The last key, crc32, has the checksum of all bytes before the comma
/// in front of it. Bytes of `run` that are not UTF-8 become U+FFFD. Throws std::invalid_argument if a tensor
/// or a file is there twice, or a file's name has a path.
std::string manifest_text(const Manifest& manifest);
/// Returns the manifest. Throws InputError (one line, without the file) if the text is damaged, or of another
/// format or version.
Manifest parse_manifest(const std::string& text);

// The names in a folder of checkpoints:
//
//   lock                              held by the run that writes here (FolderLock)
//   step-00000040/manifest.json       a checkpoint: the directory gets this name when it is whole
//   step-00000040/rank-0003.safetensors
//   step-00000040.2/                  a second checkpoint of step 40
//   step-00000050.writing/            a checkpoint that is being written
//   step-00000010.removing/           a checkpoint that is being removed
//   step-00000060.damaged/            set aside: a resumed run could not read it

inline constexpr const char* manifest_name = "manifest.json";

/// A directory that has the name of a checkpoint. A later checkpoint compares greater.
struct CheckpointDirectory {
  std::int64_t step = 0;
  int generation = 1;  ///< of the checkpoints of this step
  std::filesystem::path path;

  auto operator<=>(const CheckpointDirectory&) const = default;
};

/// Returns the directory in which a checkpoint of this step is written, until it is whole.
std::filesystem::path writing_directory(const std::filesystem::path& folder, std::int64_t step);
/// Returns the first name in `folder`, with the step and an ending, that is free: step-00000040,
/// step-00000040.2, ... or with the ending ".damaged" step-00000040.damaged, step-00000040.damaged.2, ...
std::filesystem::path free_directory(const std::filesystem::path& folder, std::int64_t step,
                                     const std::string& ending = {});
/// Returns the name of a rank's file.
std::string part_name(int rank);
/// Returns the name of a checkpoint's directory while it is being removed.
std::filesystem::path removing_directory(const std::filesystem::path& checkpoint);

/// The checkpoints in a folder, by their names.
struct FolderContent {
  std::vector<CheckpointDirectory> checkpoints;  ///< whole when they got their names; newest first
  std::vector<CheckpointDirectory> unfinished;   ///< being written or removed
};
/// Reads the names in a folder. A folder that does not exist is empty. Throws InputError with the folder if
/// it cannot be read.
FolderContent content_of(const std::filesystem::path& folder);

// Checksums are the CRC-32 of zlib, gzip and Python's zlib.crc32: they detect accidental damage, not forged
// data.

/// The checksum of empty data, with which every checksum begins.
inline constexpr std::uint32_t checksum_start = 0;

/// Returns the checksum of the data so far, which is `checksum`, followed by `bytes`.
std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t checksum);
std::uint32_t checksum_of(std::string_view text, std::uint32_t checksum);

/// Returns the checksum as eight hexadecimal digits.
std::string checksum_text(std::uint32_t checksum);

}  // namespace starpipe::runtime
