// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <string>

#include <sys/wait.h>

namespace starpipe {

struct ShellResult {
  int status = -1;
  std::string output;  ///< both streams
};

/// Runs a command of the shell and waits for its end.
inline ShellResult shell(const std::string& command) {
  ShellResult result;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  while (const std::size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) {
    result.output.append(buffer, count);
  }
  const int status = pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

/// True if the Python that the build found has NumPy.
inline bool have_numpy() { return shell(STARPIPE_PYTHON " -c 'import numpy'").status == 0; }

}  // namespace starpipe
