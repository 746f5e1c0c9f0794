// SPDX-License-Identifier: Apache-2.0
// Writes checkpoints, and finds and reads them. Each rank writes its part, then rank 0 makes the parts one
// checkpoint. A crash at any point leaves all earlier checkpoints whole. A lock keeps other runs out of their
// folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.hpp"
#include "starpipe/model/layer.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::runtime {

/// A tensor to write. The name of a parameter's value is the parameter's; `state_name` names the optimizer's.
struct TensorView {
  std::string name;
  std::vector<std::size_t> shape;
  std::span<const float> values;
};

/// Names of optimizer state begin with it; names of parameters do not.
inline constexpr std::string_view state_prefix = "optimizer:";

/// Returns the name of a piece of optimizer state ("first_moment") of a parameter:
/// "optimizer:first_moment:NAME".
std::string state_name(const std::string& kind, const std::string& parameter);

/// Writes the tensors of one rank to a file of the checkpoint that is being written, in the order given, and
/// waits until they are on the disk. Creates `folder` if it is missing. Ranks and threads may write at the
/// same time, but each part has one writer. Throws std::runtime_error with the file and the system's reason
/// (a full disk, no permission) and leaves no file then; std::invalid_argument if a name is there twice or a
/// tensor's values do not fit its shape.
PartRecord write_part(const std::filesystem::path& folder, std::int64_t step, int rank,
                      std::span<const TensorView> tensors);

/// A new checkpoint.
struct Committed {
  std::filesystem::path directory;
  /// One line for each older checkpoint that could not be removed.
  std::vector<std::string> warnings;
};

/// Rank 0 calls it after all parts of `manifest` are written. Makes them a checkpoint by one rename, and
/// waits until it is on the disk. Then removes older checkpoints, so that the newest `keep` (at least 1) that
/// have all their files stay. Never removes the new one. Throws like `write_part`; it then removes the parts
/// and leaves earlier checkpoints as they were.
Committed commit(const std::filesystem::path& folder, const Manifest& manifest, int keep);

/// Rank 0 calls it if a part could not be written and all ranks know. Removes the parts of the other ranks,
/// which makes room. Throws nothing.
void abandon(const std::filesystem::path& folder, std::int64_t step) noexcept;

/// A checkpoint that is not whole.
struct DamagedCheckpoint {
  std::filesystem::path directory;
  std::int64_t step = 0;
  std::string reason;  ///< one line that names the file
};

/// The checkpoints of a folder, for a run that resumes.
struct Found {
  std::optional<Manifest> manifest;  ///< of the newest whole checkpoint; nullopt if none is whole
  std::filesystem::path directory;   ///< of the same checkpoint
  /// The damaged checkpoints that are newer than the one found, newest first. While there are any, a run must
  /// not start afresh, and must not continue without a message.
  std::vector<DamagedCheckpoint> damaged;
  /// Checkpoints that a crash has cut short. They never were whole, so a run may ignore them.
  std::vector<CheckpointDirectory> unfinished;
};

/// Returns the manifest in the directory of a checkpoint. Throws InputError with the file if it is missing or
/// damaged.
Manifest read_manifest(const std::filesystem::path& directory);

/// Throws InputError, one line with the file, unless this file of a checkpoint has the size and the checksum
/// of the manifest. Reads all bytes.
void require_whole_part(const std::filesystem::path& directory, const PartRecord& part);

/// Throws InputError, one line with the file, unless all files that the manifest lists are whole.
using PartsCheck = std::function<void(const std::filesystem::path& directory, const Manifest& manifest)>;
void require_whole_parts(const std::filesystem::path& directory, const Manifest& manifest);

/// Finds the newest checkpoint that is whole: its manifest is valid, and all files have the manifest's sizes
/// and checksums, which `check` finds out. A folder that does not exist has no checkpoints. Throws InputError
/// if the folder cannot be read.
Found find_newest(const std::filesystem::path& folder, const PartsCheck& check = require_whole_parts);

/// True if the folder has checkpoints, whole or damaged.
bool has_checkpoints(const std::filesystem::path& folder);

/// Rank 0 calls it when a run continues from `found`, with the folder locked and before anything is written.
/// Removes unfinished checkpoints, and gives damaged ones a name (step-00000060.damaged) under which no run
/// takes them for a checkpoint or removes them: if they become readable again, they would be newer than the
/// checkpoints that the run writes now. Returns a line for each unfinished one that cannot be removed. Throws
/// std::runtime_error if a damaged one cannot be renamed.
std::vector<std::string> set_aside(const Found& found);

/// Reads tensors of a checkpoint by their names. Each rank has one, and reads what it needs. Not
/// thread-safe.
class CheckpointReader {
 public:
  CheckpointReader(std::filesystem::path directory, const Manifest& manifest);

  /// Returns the shape of a tensor; nullptr if the checkpoint has none of this name.
  [[nodiscard]] const std::vector<std::size_t>* shape(const std::string& name) const;
  /// Returns the names of all tensors that begin with `beginning`, sorted.
  [[nodiscard]] std::vector<std::string> names(const std::string& beginning = "") const;
  /// Reads the values of a tensor. Throws InputError with the file and the tensor if it is missing, or has
  /// another shape or number of values.
  void read(const std::string& name, std::span<float> values);

 private:
  struct Place {
    std::string file;
    std::vector<std::size_t> shape;
  };
  std::filesystem::path directory_;
  std::map<std::string, Place> places_;
  std::map<std::string, model::SafetensorsReader> files_;  ///< those read so far
};

// A run with other shards than the one that wrote the checkpoint finds its parameters by these.

/// A tensor of a checkpoint, and the piece of a parameter's tensor that it is; an empty piece: the whole
/// tensor.
struct SavedPiece {
  std::string name;
  model::Piece piece = {};
};

/// Returns the tensors of a checkpoint that make up the tensor of a parameter: the whole tensor, or all of
/// its pieces; empty if the checkpoint has none of them. `prefix`: stands before the parameter's name, as for
/// the optimizer's state. Throws InputError, without the checkpoint's name, if the tensor has another shape,
/// or if some of its pieces are missing.
std::vector<SavedPiece> saved_pieces(const CheckpointReader& reader, const std::string& prefix,
                                     const model::Parameter& parameter);

/// Reads the numbers of a parameter, which is a tensor or a piece of one. The run that wrote the checkpoint
/// may have cut the tensor into other pieces. Throws InputError as `saved_pieces` and CheckpointReader::read
/// do, and if the checkpoint does not have the tensor.
void read_numbers(CheckpointReader& reader, const std::string& prefix, const model::Parameter& parameter,
                  std::span<float> numbers);

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
  /// Returns the text in the lock's file, which no other run has; "" if it could not be written.
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  void take();

  std::filesystem::path folder_;
  std::filesystem::path file_;
  int descriptor_ = -1;
  std::string warning_;
  std::string text_;
};

/// True if the file `lock` of the folder has this text. Looks up to `looks` times, ten times per second: a
/// network file system may show late what another host has written.
bool shows_lock(const std::filesystem::path& folder, const std::string& text, int looks = 30);

}  // namespace starpipe::runtime
