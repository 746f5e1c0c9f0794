// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "plan/registry/conformance.hpp"

namespace starpipe::cli {

/// A process that this one starts, in a process group of its own. Ending signals (starpipe/base/signals.hpp)
/// have their default actions in it. It does not outlive this object, nor this process: its group is killed.
class ChildProcess {
 public:
  /// How the destructor ends a process that still runs. A launcher of ranks is killed: if it were asked while
  /// it starts, it might leave its ranks behind. When it is killed, its helpers on the hosts end the ranks.
  /// `sim` is asked first, so that it removes its files; it is killed if it has not ended after a second.
  enum class Ending : std::uint8_t { kill, ask };

  /// Calls `work` in a copy of this process. `work` must not return. Throws std::system_error if no process
  /// can be started.
  explicit ChildProcess(const std::function<void()>& work, Ending ending = Ending::kill);
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Returns the status of waitpid once the process has ended, and then kills what is left of its group;
  /// nullopt while it runs. Does not wait.
  std::optional<int> status();

 private:
  pid_t id_;
  Ending ending_;
  std::optional<int> status_;
};

/// For a child: becomes the program of this name on PATH. Ends with status 127 when there is none.
[[noreturn]] void become_program(const std::vector<std::string>& command);

/// Returns why a process with this status of waitpid has failed: "it ended with exit status 1", "it was ended
/// by signal 11 (Segmentation fault)". Empty if it succeeded.
std::string how_it_failed(int status);

// Each process has a group of its own. A signal that asks this process to end (starpipe/base/signals.hpp)
// ends the group too, and then the functions throw EndedBySignal.

/// The end of a process that this one started.
struct SubprocessResult {
  std::string output;
  /// Empty when the process succeeded; otherwise the reason, such as "it was ended by signal 11 (...)".
  std::string failure;
};

/// Calls `work` in a copy of this process, where a crash or an endless loop does no harm. The output is the
/// return value of `work`, which must not be empty: a process without output ended before `work` returned,
/// and has failed. The text that it prints goes to standard error. The process is killed after `max`. Throws
/// std::system_error when no process can be started.
SubprocessResult run_in_subprocess(const std::function<std::string()>& work, std::chrono::seconds max);

/// Runs a program from PATH with its arguments. The output is its standard output and standard error. It is
/// killed after `max`. Throws std::system_error when no process can be started.
SubprocessResult run_program(const std::vector<std::string>& command, std::chrono::seconds max);

/// From now on, when the code of a plug-in crashes or calls exit, the program prints one line that names the
/// plug-in and the signal, and ends with status 128 + the signal's number; 1 after a call of exit. The line
/// names the rank, too, and all ranks of a training run end. When the program's own code crashes, it prints
/// one line with the signal (in a training run the parent of `watch_over_rank` does), removes its temporary
/// files and ends by the signal; the report of a sanitizer takes the place of this line. Call it once, in
/// `main`: signal handlers belong to the program.
void report_plugin_crashes();

/// While code of a plug-in runs, prints this line and ends the program; does nothing otherwise. Exit handlers
/// call it, and the program's own _exit, which exit handlers do not see.
void end_if_plugin_exits();

/// For a child process whose parent looks at how it ends: from now on a crash ends this process by its
/// signal, and a call of exit by a plug-in gives status 1. Nothing is printed.
void leave_plugin_crashes_to_parent();

/// Runs the last step of the conformance test: trains a tiny network for three steps on the engine, as two
/// MPI ranks, under schedule `name` of the plug-in, and compares the losses with a sequential run. Does not
/// apply, and says why, if two ranks cannot be started. Loads the plug-in only in other processes; each
/// is killed after `max`.
plan::Finding train_on_two_ranks(const std::string& plugin, const std::string& name,
                                 std::chrono::seconds max);

}  // namespace starpipe::cli
