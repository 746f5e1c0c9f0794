// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/signals.hpp"
#include "cli/processes/processes.hpp"

namespace starpipe::cli {
namespace {

constexpr int exit_no_program = 127;  // as shells have it
constexpr pid_t no_process = -1;
constexpr int waits = 100;  // for a process that was asked to end: a second
constexpr std::chrono::milliseconds one_wait{10};

}  // namespace

ChildProcess::ChildProcess(const std::function<void()>& work, Ending ending) : ending_(ending) {
  std::fflush(nullptr);  // or both processes would print the buffered text
  const pid_t parent = getpid();
  id_ = fork();
  if (id_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (id_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // it died before prctl
    reset_signals();
    work();
    _exit(1);
  }
  setpgid(id_, id_);  // in both processes: either may come first
}

ChildProcess::~ChildProcess() {
  if (id_ == no_process || status_) return;
  if (ending_ == Ending::ask) {
    kill(-id_, SIGTERM);
    for (int wait = 0; wait < waits && !status(); ++wait) std::this_thread::sleep_for(one_wait);
  }
  kill(-id_, SIGKILL);
  if (!status_) waitpid(id_, nullptr, 0);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : id_(std::exchange(other.id_, no_process)), ending_(other.ending_), status_(other.status_) {}

std::optional<int> ChildProcess::status() {
  int status = 0;
  if (!status_ && waitpid(id_, &status, WNOHANG) == id_) status_ = status;
  return status_;
}

void become_program(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  _exit(exit_no_program);
}

std::string how_it_failed(int status) {
  if (WIFSIGNALED(status)) return "it was ended by " + signal_text(WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return {};
  return fmt::format("it ended with exit status {}", WEXITSTATUS(status));
}

}  // namespace starpipe::cli
