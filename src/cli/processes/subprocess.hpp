// SPDX-License-Identifier: Apache-2.0
// Each process has a group of its own. A signal that asks this process to end (starpipe/base/signals.hpp)
// ends the group too, and then the functions throw EndedBySignal.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace starpipe::cli {

/// The end of a process that this one started.
struct SubprocessResult {
  std::string output;
  /// Empty when the process succeeded; otherwise the reason, such as "it was ended by signal 11 (...)".
  std::string failure;
};

/// Calls `work` in a copy of this process, where a crash or an endless loop does no harm. The output is the
/// return value of `work`, which must not be empty: a process without output ended before `work` returned,
/// and has failed. The text that it prints goes to standard error. The process is killed after `most`. Throws
/// std::system_error when no process can be started.
SubprocessResult run_in_subprocess(const std::function<std::string()>& work, std::chrono::seconds most);

/// Runs a program from PATH with its arguments. The output is its standard output and standard error. It is
/// killed after `most`. Throws std::system_error when no process can be started.
SubprocessResult run_program(const std::vector<std::string>& command, std::chrono::seconds most);

}  // namespace starpipe::cli
