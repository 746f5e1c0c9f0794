// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace starpipe::runtime {

/// A tensor in a part of a checkpoint.
struct TensorRecord {
  std::string name;
  std::vector<std::size_t> shape;
  std::uint32_t checksum = 0;  ///< of its values' bytes

  bool operator==(const TensorRecord&) const = default;
};

/// A file of a checkpoint, written by one rank.
struct PartRecord {
  std::string file;  ///< its name in the checkpoint's directory
  std::uint64_t bytes = 0;
  std::uint32_t checksum = 0;  ///< of the whole file
  std::vector<TensorRecord> tensors;

  bool operator==(const PartRecord&) const = default;
};

/// The content of a checkpoint. A directory is a checkpoint once its manifest is there.
struct Manifest {
  std::int64_t step = 0;  ///< steps done, at least 0
  nlohmann::json run;     ///< what the training loop keeps beside the tensors; any JSON
  std::vector<PartRecord> parts;

  bool operator==(const Manifest&) const = default;
};

/// JSON of a part, for its way from its rank to rank 0.
nlohmann::json part_to_json(const PartRecord& part);
/// Throws InputError for any other JSON.
PartRecord part_from_json(const nlohmann::json& json);

/// The manifest as text in JSON. The last key, crc32, has the checksum of all bytes before the comma in front
/// of it. Bytes of `run` that are no
/// UTF-8 become U+FFFD. Throws std::invalid_argument when a tensor or a file is there twice, or a file's name
/// is no plain name.
std::string manifest_text(const Manifest& manifest);
/// Throws InputError (one line, without the file) when the text is damaged, or of another format or version.
Manifest parse_manifest(const std::string& text);

// The names in a folder of checkpoints:
//
//   lock                              held by the run that writes here (folder_lock.hpp)
//   step-00000040/manifest.json       a checkpoint: the directory gets this name when it is whole
//   step-00000040/rank-0003.safetensors
//   step-00000040.2/                  a second checkpoint of step 40
//   step-00000050.writing/            a checkpoint that is being written
//   step-00000010.removing/           a checkpoint that is being removed
//   step-00000060.damaged/            set aside: a resumed run could not read it

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

// The CRC-32 of zlib, gzip and Python's zlib.crc32: it detects accidental damage, not forged data.

/// The checksum of empty data: where a checksum begins.
inline constexpr std::uint32_t checksum_start = 0;

/// Continues `checksum`, the checksum of the data so far, with `bytes`.
std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t checksum);
std::uint32_t checksum_of(std::string_view text, std::uint32_t checksum);

/// The checksum of data with `first`, followed by `bytes` bytes with `second`.
std::uint32_t joined_checksum(std::uint32_t first, std::uint32_t second, std::uint64_t bytes);

/// Eight hexadecimal digits.
std::string checksum_text(std::uint32_t checksum);
/// The checksum in eight hexadecimal digits; nothing for any other text.
std::optional<std::uint32_t> parse_checksum(std::string_view text);

}  // namespace starpipe::runtime
