// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "runtime/engine/engine.hpp"
#include "starpipe/base/random.hpp"
#include "starpipe/model/dataset.hpp"
#include "starpipe/plan/schedule/schedule.hpp"

namespace starpipe::runtime {

/// The place in the file of metrics at which a run that resumes continues.
struct MetricsPosition {
  int step = 0;  ///< steps done
  /// Bytes of the file after these steps; nullopt if the run has not written a file, or has not done a step.
  std::optional<std::uint64_t> bytes = std::nullopt;
  std::optional<std::uint64_t> hash = std::nullopt;  ///< of these bytes (base/hash.hpp)
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

  /// Adds the line of a step, on rank 0. `number`: of the step, from 0. `loss`: nullopt for emulated jobs.
  /// `pause`: seconds in which a checkpoint after the step kept the run from training. A line that cannot be
  /// written, as with a full disk, is kept and written before the next line: see `problem`.
  void add(const plan::Schedule& schedule, const StepResult& step, int number, std::optional<double> loss,
           const model::Dataset& data, std::optional<double> pause);
  /// A line of an evaluation after `steps` steps.
  void add_evaluation(int steps, double loss);

  [[nodiscard]] const std::filesystem::path& path() const { return file_; }
  /// Returns a line for the user, once: about the file as it was found, or when lines begin to be missing and
  /// when the file has them all again; "" if there is nothing to say.
  [[nodiscard]] std::string take_news() { return std::exchange(news_, {}); }
  /// Returns why the last lines are not in the file; "" if the file has all lines.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  /// Returns the place in the file after all that has been written, and so many steps.
  [[nodiscard]] MetricsPosition position(int steps) const { return {steps, bytes_, hash_}; }

 private:
  void write(const std::string& line);

  std::filesystem::path file_;
  std::string news_;
  std::string problem_;
  std::string unwritten_;  // the lines that the file lacks
  std::uint64_t bytes_ = 0;
  std::uint64_t hash_ = hash_start;
  std::ofstream stream_;
};

}  // namespace starpipe::runtime
