// SPDX-License-Identifier: Apache-2.0
#include "cli/conformance/subprocess.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/conformance/plugin_crash.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/base/signals.hpp"

namespace starpipe::cli {
namespace {

constexpr int exit_exception = 70;
constexpr int exit_no_program = 127;

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

/// Reads until the other end is closed; returns nothing if it is still open at time `end`. Throws
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

std::string how_it_failed(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("it was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  switch (WEXITSTATUS(status)) {
    case 0:
      return {};
    case exit_exception:
      return "it threw an exception";
    default:
      return fmt::format("it ended with exit status {}", WEXITSTATUS(status));
  }
}

/// The status of a child when it ends; nothing if it has not ended at time `end`. Throws EndedBySignal when
/// one of the held signals comes.
std::optional<int> wait_for(pid_t child, TimePoint end, const HeldSignals& held) {
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    pollfd wanted{held.descriptor(), POLLIN, 0};
    ::poll(&wanted, 1, 1);  // ms
    held.check();
    if (std::chrono::steady_clock::now() > end) return std::nullopt;
  }
  return status;
}

/// Ends a child and the processes of its group. Kills them: a launcher of ranks that is asked to end while it
/// starts may leave its ranks behind, but when it is killed its helpers on the hosts end them.
void end_group(pid_t child) {
  kill(-child, SIGKILL);
  waitpid(child, nullptr, 0);
}

/// Calls `child` in a new process, with the writing end of a pipe. `child` must not return.
SubprocessResult run(const std::function<void(int)>& child, std::chrono::seconds most) {
  const HeldSignals held;
  Pipe pipe;
  std::fflush(nullptr);  // or both processes would print the buffered text
  const pid_t parent = getpid();
  const pid_t id = fork();
  if (id < 0) fail("fork");
  if (id == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(exit_exception);
    reset_signals();
    leave_plugin_crashes_to_parent();
    child(pipe.writing());
  }
  setpgid(id, id);  // in both processes: either may come first
  pipe.close_writing();
  try {
    const TimePoint end = std::chrono::steady_clock::now() + most;
    const std::optional<std::string> output = read_all(pipe.reading(), end, held);
    const std::optional<int> status = output ? wait_for(id, end, held) : std::nullopt;
    if (status) return {*output, how_it_failed(*status)};
  } catch (const EndedBySignal&) {
    end_group(id);
    throw;
  }
  end_group(id);
  return {{}, fmt::format("it did not end within {} s", most.count())};
}

}  // namespace

SubprocessResult run_in_subprocess(const std::function<std::string()>& work, std::chrono::seconds most) {
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
      most);
  if (result.failure.empty() && result.output.empty()) result.failure = "it ended with exit status 0";
  return result;
}

SubprocessResult run_program(const std::vector<std::string>& command, std::chrono::seconds most) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return run(
      [&arguments](int output) {
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
        ::close(output);
        execvp(arguments.front(), arguments.data());
        _exit(exit_no_program);
      },
      most);
}

}  // namespace starpipe::cli
