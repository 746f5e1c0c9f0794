// SPDX-License-Identifier: Apache-2.0
// A Trainer's run: from the agreed configuration to the record of all steps.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "plan/explain/compared_run.hpp"
#include "runtime/api/agreed_run.hpp"
#include "runtime/api/checkpointing.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/report/metrics.hpp"
#include "runtime/report/report.hpp"
#include "runtime/session/policy_choice.hpp"
#include "runtime/session/session.hpp"
#include "starpipe/runtime/api/trainer.hpp"

namespace starpipe::runtime {

/// Returns the configuration with what the parts decide. Registers their network. Throws InputError for a
/// part that is missing or that the configuration has as well.
Config with_parts(Config config, const TrainerParts& parts);

/// The implementation of Trainer, and the steps of `compare` and `sim`; its functions throw RunFailure and
/// InputError on every rank. All are collective unless they say otherwise.
class Training {
 public:
  Training(const Mpi& mpi, Config config, TrainerParts parts);
  /// Trains the steps of `run` under `policy`, which need not be the configured one. Writes no checkpoints.
  /// `run` must outlive this. Not collective.
  Training(const AgreedRun& run, PolicyChoice policy);
  /// Waits for the tasks of all ranks.
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  bool resume();
  Step step();
  bool run();
  starpipe::Evaluation evaluate();
  void save();
  void save_weights(const std::filesystem::path& file, const model::SaveFormat& format);
  std::vector<std::vector<float>> weights();
  std::vector<std::vector<float>> gradients();
  void accept_signals() { accepts_signals_ = true; }

  /// Called once, on every rank, when all steps are done and the weights are finite, before the evaluation
  /// after the last step: whatever fails later does not cost the weights.
  std::function<void()> on_trained = {};
  std::function<void(const Step&)> on_step = {};
  std::function<void(const starpipe::Evaluation&)> on_evaluation = {};

  // Not collective.

  [[nodiscard]] int steps_done() const { return steps_done_; }
  [[nodiscard]] const AgreedRun& agreed() const { return run_; }
  /// StarPU, which runs.
  [[nodiscard]] const Session& session() const { return *session_; }
  [[nodiscard]] const Measurement& measurement() const { return measurement_; }
  /// Returns the measurement of all steps. No step may follow.
  [[nodiscard]] Measurement take_measurement() { return std::move(measurement_); }
  /// Returns the engine of a run that has started to train.
  [[nodiscard]] const Engine& engine() const { return *engine_; }

  /// The record of the steps, and on rank 0 the run compared with its prediction.
  struct Result {
    TrainRecord record;
    std::optional<plan::ComparedRun> compared;  ///< on rank 0
  };
  /// After at least one step.
  Result result();
  /// Returns why the file of metrics lacks lines; "" if it does not.
  [[nodiscard]] std::string metrics_problem() const;

 private:
  [[nodiscard]] bool is_root() const { return mpi_.rank() == 0; }
  // Throws std::logic_error, naming the function that was called, when the run trains nothing or has failed.
  void require_training(const char* function) const;
  // Throws InputError when jobs are emulated.
  void require_values(const char* function) const;
  void open_folder(bool resume);
  // Starts StarPU, reads the checkpoint and opens the file of metrics.
  void start();
  // Trains a step. `checkpoints`: also asks whether a checkpoint is due after it, and then copies the
  // weights.
  Step train_step(bool checkpoints);
  void run_steps();
  void evaluate_if_due();
  void say_metrics_news();
  // Tells the program of a Trainer in a few words what the run does now.
  void show(const std::string& words) const;
  Checkpointing& checkpoints();

  const Mpi& mpi_;
  std::optional<AgreedRuns> agreed_;  // what `run_` is part of, in a Trainer
  const AgreedRun& run_;
  PolicyChoice policy_;
  std::optional<std::filesystem::path> metrics_file_;
  std::optional<MetricsPosition> metrics_position_;
  std::optional<CheckpointFolder> folder_;
  bool accepts_signals_ = false;
  Measurement measurement_;
  TrainRecord record_;
  int steps_done_ = 0;
  bool has_failed_ = false;
  bool is_due_ = false;  // a checkpoint follows the last step
  std::optional<Session> session_;
  std::unique_ptr<Engine> engine_;        // of a run that trains
  std::unique_ptr<Evaluator> evaluator_;  // of a run that only evaluates
  std::optional<MetricsFile> metrics_;    // on rank 0
  std::optional<Checkpointing> checkpoints_;
};

/// Returns the report of the steps so far, on rank 0.
nlohmann::ordered_json training_report(const Training& training, const Training::Result& result);

}  // namespace starpipe::runtime
