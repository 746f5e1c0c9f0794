// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "runtime/engine/engine.hpp"
#include "starpipe/base/random.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// Figures of a training step, for people and programs.
struct StepMetrics {
  int step = 0;                                        ///< from 0; files and messages count from 1
  std::optional<double> loss;                          ///< mean over the micro-batches; none of emulated jobs
  std::optional<double> gradient_norm = std::nullopt;  ///< before clipping; none of emulated jobs
  double learning_rate = 0;
  bool clipped = false;       ///< the update used a clipped gradient
  bool skipped = false;       ///< the update was skipped for infinity or NaN
  std::uint64_t samples = 0;  ///< or tokens: of all steps so far, this one included
  double seconds = 0;
  std::optional<double> checkpoint_seconds = std::nullopt;  ///< pause for a checkpoint after the step
  double bubble_fraction = 0;                               ///< measured
  std::uint64_t peak_stash_bytes = 0;                       ///< of the worker that held most
};

/// Returns the metrics of a step, on rank 0. `number`: of the step, from 0.
StepMetrics metrics_of(const plan::Schedule& schedule, const StepResult& step, int number,
                       std::optional<double> loss, std::uint64_t samples_of_step);

/// The place in the file of metrics at which a run that resumes continues.
struct MetricsPosition {
  int step = 0;  ///< steps done
  /// Bytes of the file after these steps; nullopt if the run has not written a file, or has not done a step.
  std::optional<std::uint64_t> bytes = std::nullopt;
  std::optional<std::uint64_t> hash = std::nullopt;  ///< of these bytes
};

/// Writes a line of JSON for each step, and for each evaluation, as soon as it has ended: another program may
/// read the file during the training.
class MetricsFile {
 public:
  /// Throws InputError as `check` does. Cuts off the lines after `position`: of steps that the resumed run
  /// does again. Where these are all steps, the file gets another name (FILE.old), and `news` says so: it
  /// may be the record of another run.
  explicit MetricsFile(std::filesystem::path file, const std::optional<MetricsPosition>& position = {});
  /// Throws InputError when `file` cannot be created, and when it has content of another run: any content
  /// without `position`, else content that is not the record up to `position`. Leaves no trace.
  static void check(const std::filesystem::path& file, const std::optional<MetricsPosition>& position);

  /// Throws std::runtime_error when the line cannot be written, as with a full disk.
  void add(const StepMetrics& metrics, const std::string& sample_word);
  /// A line of an evaluation after `steps` steps.
  void add_evaluation(int steps, double loss);

  [[nodiscard]] const std::filesystem::path& path() const { return file_; }
  /// A line for the user about the file as it was found; "" if there is nothing to say.
  [[nodiscard]] const std::string& news() const { return news_; }
  /// Bytes written so far, those before a resumed run's first step included.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Hash of these bytes (base/hash.hpp).
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  void write(const std::string& line);

  std::filesystem::path file_;
  std::string news_;
  std::uint64_t bytes_ = 0;
  std::uint64_t hash_ = hash_start;
  std::ofstream stream_;
};

}  // namespace starpipe::runtime
