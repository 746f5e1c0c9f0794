// SPDX-License-Identifier: Apache-2.0
#include "cli/processes/subprocess.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/signals.hpp"
#include "cli/processes/child_process.hpp"
#include "runtime/host/lost_rank.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/plugin.hpp"

namespace starpipe::cli {
namespace {

constexpr int exit_exception = 70;

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

/// Both ends of a pipe. Programs that are started do not inherit them.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) fail("pipe2");
  }
  ~Pipe() {
    for (int end = 0; end < 2; ++end) close(end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int reading() const { return ends_[0]; }
  [[nodiscard]] int writing() const { return ends_[1]; }
  void close_writing() { close(1); }

 private:
  void close(int end) {
    int& descriptor = ends_[index(end)];
    if (descriptor >= 0) ::close(descriptor);
    descriptor = -1;
  }
  std::array<int, 2> ends_{-1, -1};
};

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
}

using TimePoint = std::chrono::steady_clock::time_point;

/// Reads until the other end is closed. Returns nullopt if it is still open at time `end`. Throws
/// EndedBySignal when one of the held signals comes.
std::optional<std::string> read_all(int descriptor, TimePoint end, const HeldSignals& held) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    if (left <= 0) return std::nullopt;
    std::array wanted = {pollfd{descriptor, POLLIN, 0}, pollfd{held.descriptor(), POLLIN, 0}};
    if (::poll(wanted.data(), wanted.size(), static_cast<int>(left)) <= 0) continue;
    held.check();
    if (wanted[0].revents == 0) continue;
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

/// As `cli::how_it_failed`, for a child that ends with `exit_exception` when its work throws.
std::string failure_of(int status) {
  const bool threw = WIFEXITED(status) && WEXITSTATUS(status) == exit_exception;
  return threw ? "it threw an exception" : how_it_failed(status);
}

/// Waits for a child, and returns its status; nullopt if it has not ended at time `end`. Throws EndedBySignal
/// when one of the held signals comes.
std::optional<int> wait_for(ChildProcess& child, TimePoint end, const HeldSignals& held) {
  while (!child.status()) {
    pollfd wanted{held.descriptor(), POLLIN, 0};
    ::poll(&wanted, 1, 1);  // ms
    held.check();
    if (std::chrono::steady_clock::now() > end) return std::nullopt;
  }
  return child.status();
}

/// Calls `work` in a new process, with the writing end of a pipe. `work` must not return.
SubprocessResult run(const std::function<void(int)>& work, std::chrono::seconds max) {
  const HeldSignals held;
  Pipe pipe;
  ChildProcess child([&] {
    leave_plugin_crashes_to_parent();
    work(pipe.writing());
  });
  pipe.close_writing();
  const TimePoint end = std::chrono::steady_clock::now() + max;
  const std::optional<std::string> output = read_all(pipe.reading(), end, held);
  const std::optional<int> status = output ? wait_for(child, end, held) : std::nullopt;
  if (status) return {*output, failure_of(*status)};
  return {{}, fmt::format("it did not end within {} s", max.count())};
}

}  // namespace

SubprocessResult run_in_subprocess(const std::function<std::string()>& work, std::chrono::seconds max) {
  SubprocessResult result = run(
      [&work](int output) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        try {
          write_all(output, work());
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
        ::close(output);
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

// Calls only functions that a signal handler may call.
[[noreturn]] void end_with(const char* plugin, const char* what, int status) {
  // Several threads may crash: the first one prints the line and ends the process.
  while (ends.test_and_set()) poll(nullptr, 0, 1000);
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

void at_exit() {
  const char* const plugin = plan::running_plugin();
  if (plugin == nullptr) return;
  if (parent_reports) _exit(exit_failure);
  end_with(plugin, "a call of exit", exit_failure);
}

}  // namespace

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
  std::atexit(at_exit);
}

void leave_plugin_crashes_to_parent() {
  parent_reports = true;
  // Not the handlers that were there before ours: MPI libraries have some that print pages of text.
  for (const Crash& crash : crashes) std::signal(crash.signal, SIG_DFL);
}

}  // namespace starpipe::cli
