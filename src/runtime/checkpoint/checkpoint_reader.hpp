// SPDX-License-Identifier: Apache-2.0
// Finds and reads checkpoints.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
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

/// What a folder of checkpoints offers to a run that resumes.
struct Found {
  std::optional<Manifest> manifest;  ///< of the newest whole checkpoint
  std::filesystem::path directory;   ///< of the same; empty when there is none
  /// Those that are newer than the one found, newest first; all when none is whole. A run must not start
  /// afresh, and must not go on in silence, while there are any.
  std::vector<DamagedCheckpoint> damaged;
  /// Checkpoints that a crash has cut short. They never were whole, and are no reason to refuse anything.
  std::vector<std::filesystem::path> unfinished;
};

/// The newest checkpoint that is whole: the manifest is one, and all files have its sizes, checksums and
/// tensors. Reads all bytes of it, so only rank 0 calls it. A folder that does not exist has no checkpoints.
/// Throws InputError when the folder cannot be read.
Found find_newest(const std::filesystem::path& folder);

/// Whether the folder has checkpoints, whole or damaged.
bool has_checkpoints(const std::filesystem::path& folder);

/// Rank 0, with the folder locked and before anything is written, when a run goes on from `found`: removes
/// unfinished checkpoints, and gives damaged ones a name (step-00000060.damaged) under which they are never
/// taken for a checkpoint, nor removed. A disturbance that passes could make them readable again, and then
/// they would be newer than what the run writes now. Returns a line for each that this could not be done
/// with; throws std::runtime_error when a damaged one cannot be renamed.
std::vector<std::string> set_aside(const Found& found);

/// Reads tensors of a checkpoint by their names. Each rank has one, and reads what it needs. Not
/// thread-safe.
class CheckpointReader {
 public:
  CheckpointReader(std::filesystem::path directory, const Manifest& manifest);

  /// The shape of a tensor; null when the checkpoint has none of this name.
  [[nodiscard]] const std::vector<std::size_t>* shape(const std::string& name) const;
  /// All names, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Those that begin with `beginning`, sorted.
  [[nodiscard]] std::vector<std::string> names_from(const std::string& beginning) const;
  /// Reads the values of a tensor and checks their checksum. Throws InputError with the file and the tensor
  /// when it is missing, has another number of values, or is damaged.
  void read(const std::string& name, std::span<float> values);

 private:
  struct Place {
    std::string file;
    TensorRecord record;
  };
  std::filesystem::path directory_;
  std::map<std::string, Place> places_;
  std::map<std::string, model::SafetensorsReader> files_;  ///< those read so far
};

// The tensors of a checkpoint by which a run with other shards finds its own.

/// A tensor of a checkpoint, and which piece it is of a parameter's tensor; an empty piece: the whole tensor.
struct SavedPiece {
  std::string name;
  model::Piece piece = {};
};

/// What a checkpoint has of the tensor of a parameter: the whole tensor, or all of its pieces. Empty when it
/// has nothing. `prefix`: what stands before the parameter's name, as of the optimizer's state. Throws
/// InputError, without the checkpoint's name, when the tensor has another shape, or its pieces are not all
/// there.
std::vector<SavedPiece> saved_pieces(const CheckpointReader& reader, const std::string& prefix,
                                     const model::Parameter& parameter);

/// Reads the numbers of a parameter, which is a tensor or a piece of one. The run that wrote the checkpoint
/// may have cut the tensor otherwise. Throws InputError as `saved_pieces` and CheckpointReader::read do, and
/// when the checkpoint has nothing of the tensor.
void read_numbers(CheckpointReader& reader, const std::string& prefix, const model::Parameter& parameter,
                  std::span<float> numbers);

}  // namespace starpipe::runtime
