// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace starpipe::cli {

/// How work ended that ran in a process of its own.
struct SubprocessResult {
  std::string output;
  /// Empty when it ended well; otherwise how it did not, such as "it was ended by signal 11 (...)".
  std::string failure;
};

/// Runs `work` in a copy of this process, so that whatever it does there does no harm here: its result is the
/// output. What it prints goes to standard error. It is killed after `most`. Throws std::system_error when
/// no process can be made.
SubprocessResult run_in_subprocess(const std::function<std::string()>& work, std::chrono::seconds most);

/// The same for a program, found on PATH; its output is both what it prints and its errors.
SubprocessResult run_program(const std::vector<std::string>& command, std::chrono::seconds most);

}  // namespace starpipe::cli
