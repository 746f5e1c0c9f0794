// SPDX-License-Identifier: Apache-2.0
// The folder of checkpoints of a run, and the checkpoint that the run continues from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "runtime/api/agreed_run.hpp"
#include "runtime/checkpoint/folder_lock.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/engine/engine.hpp"

namespace starpipe::runtime {

/// Everything that a checkpoint keeps besides the tensors and the number of steps.
struct RunRecord {
  int updates = 0;  ///< of the optimizer
  /// Bytes of the file of metrics after the checkpoint's steps; nullopt if the run wrote none.
  std::optional<std::uint64_t> metrics_bytes;
  std::optional<std::uint64_t> metrics_hash;  ///< of these bytes; see MetricsPosition
  nlohmann::ordered_json facts;               ///< training_facts()
  /// config_json() of the run that wrote it; null in checkpoints of earlier versions.
  nlohmann::ordered_json config;
};

/// The folder of checkpoints. Rank 0 holds its lock as long as this lives.
class CheckpointFolder {
 public:
  /// Collective. Locks the folder. With `resume` finds the newest checkpoint that is whole, and says on
  /// standard error where the run continues, and which checkpoints cannot be read. Throws InputError on every
  /// rank: when another run has the folder; without `resume` when it has checkpoints; with `resume` when all
  /// its checkpoints are damaged, or the one found is of another training.
  CheckpointFolder(const AgreedRun& run, bool resume);

  /// Steps that the checkpoint has done, and what it keeps; the same on every rank. Nothing when the run
  /// starts with its first step.
  [[nodiscard]] int first_step() const { return found_ ? static_cast<int>(found_->step) : 0; }
  [[nodiscard]] const std::optional<RunRecord>& resumed() const { return record_; }

  /// Collective. Before the first step: reads the checkpoint's values into the engine. Throws RunFailure on
  /// every rank when some rank cannot read them. Does nothing when there is no checkpoint to continue from.
  void restore(Engine& engine) const;

  /// On rank 0. See FolderLock::renew.
  void renew_lock() { lock_->renew(); }
  [[nodiscard]] const std::filesystem::path& path() const { return run_.config.checkpoint.folder; }

 private:
  // On rank 0.
  void find(bool resume);

  const AgreedRun& run_;
  std::optional<FolderLock> lock_;  // on rank 0
  std::optional<Manifest> found_;
  std::filesystem::path directory_;  // of `found_`
  std::optional<RunRecord> record_;
};

nlohmann::json to_json(const RunRecord& record);

}  // namespace starpipe::runtime
