// SPDX-License-Identifier: Apache-2.0
#include "cli/processes/processes.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/signals.hpp"
#include "runtime/host/lost_rank.hpp"
#include "starpipe/plan/registry/plugin.hpp"

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
  if (status_) return;
  kill(-id_, SIGKILL);
  waitpid(id_, nullptr, 0);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : id_(std::exchange(other.id_, no_process)), ending_(other.ending_), status_(other.status_) {}

// The group is killed before the process is reaped: until then no other group can get its number.
std::optional<int> ChildProcess::status() {
  siginfo_t ended{};
  if (status_ || waitid(P_PID, static_cast<id_t>(id_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      ended.si_pid != id_) {
    return status_;
  }
  kill(-id_, SIGKILL);
  int status = 0;
  if (waitpid(id_, &status, 0) == id_) status_ = status;
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

namespace {

constexpr int exit_exception = 70;
constexpr int poll_ms = 2;

std::string text_of(std::FILE* file) {
  std::fseek(file, 0, SEEK_END);
  std::string text(static_cast<std::size_t>(std::max(std::ftell(file), 0L)), '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  return text;
}

/// Does the same as `cli::how_it_failed` for a child that ends with `exit_exception` when its work throws.
std::string failure_of(int status) {
  const bool threw = WIFEXITED(status) && WEXITSTATUS(status) == exit_exception;
  return threw ? "it threw an exception" : how_it_failed(status);
}

/// Calls `work` in a new process, with the descriptor of its output. `work` must not return. Throws
/// EndedBySignal when an ending signal comes.
SubprocessResult run(const std::function<void(int)>& work, std::chrono::seconds max) {
  const HeldSignals held;
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> output(
      ::fdopen(::memfd_create("output", MFD_CLOEXEC), "r"), std::fclose);
  if (!output) throw std::system_error(errno, std::generic_category(), "memfd_create");
  ChildProcess child([&] {
    leave_plugin_crashes_to_parent();
    work(fileno(output.get()));
  });
  const auto end = std::chrono::steady_clock::now() + max;
  while (!child.status()) {
    pollfd wanted{held.descriptor(), POLLIN, 0};
    ::poll(&wanted, 1, poll_ms);
    held.check();
    if (std::chrono::steady_clock::now() > end)
      return {{}, fmt::format("it did not end within {} s", max.count())};
  }
  return {text_of(output.get()), failure_of(*child.status())};
}

}  // namespace

SubprocessResult run_in_subprocess(const std::function<std::string()>& work, std::chrono::seconds max) {
  SubprocessResult result = run(
      [&work](int output) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        try {
          write_text(output, work().c_str());
          std::fflush(nullptr);
        } catch (...) {
          _exit(exit_exception);
        }
        _exit(0);
      },
      max);
  if (result.failure.empty() && result.output.empty()) result.failure = "it ended with exit status 0";
  return result;
}

SubprocessResult run_program(const std::vector<std::string>& command, std::chrono::seconds max) {
  return run(
      [&command](int output) {
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
        become_program(command);
      },
      max);
}

namespace {

constexpr int exit_failure = 1;

struct Crash {
  int signal;
  const char* text;  // a signal handler may not call strsignal
  struct sigaction before;
};
std::array<Crash, 5> crashes = {{{SIGSEGV, "signal 11 (segmentation fault)", {}},
                                 {SIGBUS, "signal 7 (bus error)", {}},
                                 {SIGFPE, "signal 8 (arithmetic exception)", {}},
                                 {SIGILL, "signal 4 (illegal instruction)", {}},
                                 {SIGABRT, "signal 6 (abort)", {}}}};
static_assert(SIGSEGV == 11 && SIGBUS == 7 && SIGFPE == 8 && SIGILL == 4 && SIGABRT == 6);

// A plug-in that calls itself without end leaves no room on the stack of the thread.
constexpr std::size_t handler_stack_bytes = std::size_t{64} * 1024;
alignas(16) std::array<char, handler_stack_bytes> handler_stack;

// Text and numbers are made beforehand: a signal handler may not format, nor read the environment.
std::array<char, 32> rank_text{};  // "rank 2: "; empty without a launcher
int pause_before_line_ms = 0;
bool parent_reports = false;
std::atomic_flag ends;

// True in the thread that ends the process. It calls _exit while code of the plug-in still counts as running.
thread_local bool is_ending = false;

// Calls only functions that a signal handler may call.
[[noreturn]] void end_with(const char* plugin, const char* what, int status) {
  // Several threads may crash: the first one prints the line and ends the process.
  while (ends.test_and_set()) poll(nullptr, 0, 1000);
  is_ending = true;
  // A plug-in usually fails on all ranks. Rank 0 prints its line and ends the job during the pause of the
  // others. When only another rank fails, it prints its line after the pause.
  if (pause_before_line_ms > 0) poll(nullptr, 0, pause_before_line_ms);
  const char* const rank = rank_text.data();
  for (const char* part : {"starpipe: ", rank, "plug-in ", plugin, ": its code was ended by ", what, "\n"}) {
    write_text(STDERR_FILENO, part);
  }
  runtime::end_watched_job(status);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

// The program's own code has crashed. The handlers that were there before belong to MPI's libraries: UCX
// prints pages of text, and waits indefinitely if its thread was allocating memory.
void end_program(const Crash& crash) {
  remove_files_now();
  if (!runtime::is_watched()) {
    for (const char* part : {"starpipe: ended by ", crash.text, "\n"}) write_text(STDERR_FILENO, part);
  }
  std::signal(crash.signal, SIG_DFL);
}

void on_crash(int signal) {
  const char* const plugin = plan::running_plugin();
  for (const Crash& crash : crashes) {
    if (crash.signal != signal) continue;
    if (plugin != nullptr) end_with(plugin, crash.text, status_of_signal(signal));
    if (sanitized) {
      sigaction(signal, &crash.before, nullptr);  // the sanitizer's, which prints a report
    } else {
      end_program(crash);
    }
    raise(signal);  // the signal comes when this handler has returned
  }
}

}  // namespace

void end_if_plugin_exits() {
  const char* const plugin = plan::running_plugin();
  if (plugin == nullptr || is_ending) return;
  is_ending = parent_reports;
  if (parent_reports) _exit(exit_failure);
  end_with(plugin, "a call of exit", exit_failure);
}

void report_plugin_crashes() {
  if (const auto rank = runtime::launcher_rank())
    fmt::format_to_n(rank_text.data(), rank_text.size() - 1, "rank {}: ", *rank);
  pause_before_line_ms = runtime::signal_line_pause_ms();
  stack_t stack{};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  const bool has_stack = sigaltstack(&stack, nullptr) == 0;
  for (Crash& crash : crashes) {
    struct sigaction action {};
    action.sa_handler = on_crash;
    action.sa_flags = has_stack ? SA_ONSTACK : 0;
    sigaction(crash.signal, &action, &crash.before);
  }
  std::atexit(end_if_plugin_exits);
  std::at_quick_exit(end_if_plugin_exits);
}

void leave_plugin_crashes_to_parent() {
  parent_reports = true;
  // Not the handlers that were there before ours: MPI libraries have some that print pages of text.
  for (const Crash& crash : crashes) std::signal(crash.signal, SIG_DFL);
}

}  // namespace starpipe::cli
