// SPDX-License-Identifier: Apache-2.0
// The folder of one run of a study: config.yaml (a copy of the base configuration), log.txt (what the run has
// printed), the report and other outputs, run.json (how the run ended) and lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/study/study_runs.hpp"

namespace starpipe::cli {

enum class RunState : std::uint8_t {
  open,  ///< not run, or interrupted
  done,
  failed
};

/// The outcome of a run, read from its folder.
struct RunOutcome {
  RunState state = RunState::open;
  std::string problem;  ///< of a failed run: the line that says why
  double seconds = 0;   ///< how long the run took; 0 if unknown
  /// The program and its place: starpipe, commit, machine, processor and cores, as far as they are known.
  nlohmann::ordered_json origin = nlohmann::ordered_json::object();
};

/// A run is done when its report is there. A command writes its report last, and at once. A run whose report
/// is not JSON has failed: the file has been damaged since.
RunOutcome read_outcome(const std::filesystem::path& folder);

/// The lock of a run's folder: the process that has it runs the run. It ends with the process.
class RunLock {
 public:
  /// Creates the folder, and takes the lock if no other process has it. Throws InputError when the folder
  /// cannot be written.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// True if this process may run the run, also on a file system without locks.
  [[nodiscard]] bool taken() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

/// Before a run: removes the files of an earlier attempt, and writes `config_text` to config.yaml.
void prepare_folder(const std::filesystem::path& folder, std::string_view config_text);

/// After a run: writes run.json. `failure`: why the process failed; empty if it succeeded. A failed run's
/// problem is the last message of starpipe in its log, else `failure`.
void record_end(const std::filesystem::path& folder, const std::vector<std::string>& command,
                const std::string& failure, double seconds);

/// The folder of a run, below the study's `folder`, and two of its files.
std::filesystem::path folder_of(const StudyRun& run, const std::filesystem::path& folder);
std::filesystem::path config_of(const std::filesystem::path& folder);
std::filesystem::path log_of(const std::filesystem::path& folder);

}  // namespace starpipe::cli
