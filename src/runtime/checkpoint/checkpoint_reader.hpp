// SPDX-License-Identifier: Apache-2.0
// Finds and reads checkpoints.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.hpp"
#include "starpipe/model/layer.hpp"
#include "starpipe/model/safetensors.hpp"

namespace starpipe::runtime {

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

/// Finds the newest checkpoint that is whole: its manifest is valid, and all files have the manifest's sizes
/// and checksums. Reads all bytes of it, so only rank 0 calls it. A folder that does not exist has no
/// checkpoints. Throws InputError if the folder cannot be read.
Found find_newest(const std::filesystem::path& folder);

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
  /// Returns the names of all tensors, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Returns the names that begin with `beginning`, sorted.
  [[nodiscard]] std::vector<std::string> names_from(const std::string& beginning) const;
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

}  // namespace starpipe::runtime
