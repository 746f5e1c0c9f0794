// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a training run: their folder, the one that the run continues from, and those that it
// writes while it continues.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/api/agreed_run.hpp"
#include "runtime/checkpoint/checkpoint_files.hpp"
#include "runtime/checkpoint/manifest.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/report/metrics.hpp"
#include "runtime/report/report.hpp"

namespace starpipe::runtime {

/// The trained numbers of a set of parameters, copied out of the engine.
struct SetCopy {
  int set = 0;  ///< its number, as in Network::sets()
  std::vector<float> parameters = {};
  std::vector<float> optimizer = {};
};

/// Returns the tensors of a copy, by parameter: its values, and each piece of its optimizer state. They are
/// views of `copy`.
std::vector<TensorView> tensors_of(const AgreedRun& run, const SetCopy& copy);

/// Returns the facts that must be the same when a run is resumed, by configuration key; and the content of
/// the validation data, which may change.
nlohmann::ordered_json training_facts(const AgreedRun& run);

/// Returns what computes the matrix products of a run on cores, each library and its kernels once: other
/// kernels give other bits. On rank 0; empty on the others, and without workers on cores.
std::vector<std::string> products_of(const AgreedRun& run);

/// Everything that a checkpoint keeps besides the tensors and the number of steps.
struct RunRecord {
  int updates = 0;                         ///< of the optimizer
  MetricsPosition metrics;                 ///< after the checkpoint's steps
  nlohmann::ordered_json facts;            ///< training_facts()
  nlohmann::ordered_json config;           ///< config_json() of the run that wrote it
  std::vector<std::string> products = {};  ///< products_of(); empty in a checkpoint without them
};

/// The folder of checkpoints. Rank 0 holds its lock as long as this lives.
class CheckpointFolder {
 public:
  /// Collective. Locks the folder. With `resume` finds the newest checkpoint that is whole, and says
  /// (Mpi::say) where the run continues, and which checkpoints cannot be read. Throws InputError on every
  /// rank: when another run has the folder; when a rank sees another folder of this name, or cannot write in
  /// it; without `resume` when it has checkpoints; with `resume` when all its checkpoints are damaged, or the
  /// one found is of another training.
  CheckpointFolder(const AgreedRun& run, bool resume);

  /// Returns the number of steps that the checkpoint has done, and what it keeps; the same on every rank. 0
  /// and nullopt when the run starts with its first step.
  [[nodiscard]] int first_step() const { return found_ ? static_cast<int>(found_->step) : 0; }
  [[nodiscard]] const std::optional<RunRecord>& resumed() const { return record_; }

  /// Collective. Before the first step: reads the checkpoint's values into the engine. Throws RunFailure on
  /// every rank when some rank cannot read them. Does nothing when there is no checkpoint to continue from.
  void restore(Engine& engine) const;

  /// On rank 0. See FolderLock::renew.
  void renew_lock() { lock_->renew(); }
  [[nodiscard]] const std::filesystem::path& path() const { return run_.config.checkpoint.folder; }

 private:
  // On rank 0. `found`: with `resume`.
  void choose(bool resume, Found found);
  // Collective, with the lock taken.
  void require_shared() const;

  const AgreedRun& run_;
  std::optional<FolderLock> lock_;  // on rank 0
  std::optional<Manifest> found_;
  std::filesystem::path directory_;  // of `found_`
  std::optional<RunRecord> record_;
};

nlohmann::json to_json(const RunRecord& record);

/// A checkpoint is a copy of the trained numbers, made between two steps. A thread of each rank writes the
/// rank's part of it. When all parts are written, rank 0 makes them a checkpoint. Both happen while the
/// run trains; at the end of each step the ranks check the progress.
///
/// All public functions but the destructor are collective, and the thread that runs the steps calls them. A
/// checkpoint that cannot be written does not end the run: rank 0 says so, and it counts as a failure.
class Checkpointing {
 public:
  /// The references must outlive this.
  Checkpointing(const AgreedRun& run, CheckpointFolder& folder, const Engine& engine);
  /// Waits for this rank's thread.
  ~Checkpointing() = default;
  Checkpointing(const Checkpointing&) = delete;
  Checkpointing& operator=(const Checkpointing&) = delete;

  /// Call it before the first step. From then on signals ask for checkpoints, unless `on_signal` is `none`.
  void accept_signals();

  /// Call it after each step, `steps` having been done. Continues a checkpoint that is being written.
  /// Returns true if a checkpoint is due: by the number of steps, or because a signal to some rank asks for
  /// it. All ranks get the same answer.
  bool is_due(int steps);
  /// True if a signal to some rank has asked for the end of the run; the same on every rank.
  [[nodiscard]] bool is_stopping() const { return is_stopping_; }

  /// Copies the trained numbers. Waits first when the last checkpoint is not yet written. Returns the
  /// seconds of the slowest rank: the time in which the run does not train.
  double copy(int steps);
  /// After `copy`: begins to write. `metrics`: the file of metrics as it is now, which the checkpoint goes
  /// with; null on other ranks than rank 0, and when there is none.
  void begin_writing(const MetricsFile* metrics);

  /// Waits until all is written. Adds to `summary`, on every rank, how many checkpoints could not be written
  /// and why the last one could not.
  void finish(CheckpointSummary& summary);

 private:
  // The work of the ranks. `parts`: each writes its own. `commit`: rank 0 makes them a checkpoint.
  enum class Phase : std::uint8_t { idle, parts, commit };
  // The outcome of a phase on this rank.
  struct Outcome {
    std::string problem;
    PartRecord part;
    std::vector<std::string> warnings;
  };

  [[nodiscard]] bool is_running() const;
  // Collective: waits for all ranks, and begins the next phase.
  void end_phase();
  void begin_commit(const PartRecord& mine);
  void end_checkpoint(const Outcome& mine);
  [[nodiscard]] Outcome write_own_part() const;
  [[nodiscard]] Outcome commit(const std::vector<std::string>& parts) const;

  const AgreedRun& run_;
  CheckpointFolder& folder_;
  const Engine& engine_;
  bool is_stopping_ = false;
  Phase phase_ = Phase::idle;
  int steps_ = 0;  // of the checkpoint
  std::vector<SetCopy> copies_;
  std::string copy_problem_;  // why this rank has no copy; empty if it has one
  RunRecord record_;
  std::filesystem::path metrics_file_;  // of `record_`; empty if there is none
  int failures_ = 0;
  std::string last_problem_;
  std::future<Outcome> thread_;  // of this rank, while the phase has work for it; the last member
};

}  // namespace starpipe::runtime
