// SPDX-License-Identifier: Apache-2.0
// Writes the checkpoints of a training run, while it goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.hpp"
#include "runtime/api/checkpoint_state.hpp"
#include "runtime/api/resume.hpp"
#include "runtime/api/run_on_ranks.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/report/metrics.hpp"
#include "runtime/report/train_record.hpp"

namespace starpipe::runtime {

/// A checkpoint is a copy of the trained numbers, made between two steps. A thread of each rank writes the
/// rank's part of it. When all parts are written, rank 0 makes them a checkpoint. Each of these goes on while
/// the run trains; the ranks look at the end of each step how far they are.
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

  /// Call it after each step, `steps` having been done. Goes on with a checkpoint that is being written.
  /// Returns whether a checkpoint is due: by the number of steps, or because a signal to some rank asks for
  /// it. All ranks get the same answer.
  bool is_due(int steps);
  /// Whether a signal to some rank has asked for the end of the run; the same on every rank.
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
  // What the ranks do. `parts`: each writes its own. `commit`: rank 0 makes them a checkpoint.
  enum class Phase : std::uint8_t { idle, parts, commit };
  // What came of a phase on this rank.
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
  std::string copy_problem_;  // why this rank has no copy; empty when it has one
  RunRecord record_;
  std::filesystem::path metrics_file_;  // of `record_`; empty when there is none
  int failures_ = 0;
  std::string last_problem_;
  std::future<Outcome> thread_;  // of this rank, while the phase has work for it; the last member
};

}  // namespace starpipe::runtime
