// SPDX-License-Identifier: Apache-2.0
#include "cli/processes/subprocess.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <optional>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/processes/plugin_crash.hpp"
#include "cli/processes/child_process.hpp"
#include "starpipe/base/index.hpp"
#include "base/signals.hpp"

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

/// As `cli::how_it_failed`, for a child that ends with `exit_exception` when its work throws.
std::string failure_of(int status) {
  const bool threw = WIFEXITED(status) && WEXITSTATUS(status) == exit_exception;
  return threw ? "it threw an exception" : how_it_failed(status);
}

/// The status of a child when it ends; nothing if it has not ended at time `end`. Throws EndedBySignal when
/// one of the held signals comes.
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
SubprocessResult run(const std::function<void(int)>& work, std::chrono::seconds most) {
  const HeldSignals held;
  Pipe pipe;
  ChildProcess child([&] {
    leave_plugin_crashes_to_parent();
    work(pipe.writing());
  });
  pipe.close_writing();
  const TimePoint end = std::chrono::steady_clock::now() + most;
  const std::optional<std::string> output = read_all(pipe.reading(), end, held);
  const std::optional<int> status = output ? wait_for(child, end, held) : std::nullopt;
  if (status) return {*output, failure_of(*status)};
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
  return run(
      [&command](int output) {
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
        ::close(output);
        become_program(command);
      },
      most);
}

}  // namespace starpipe::cli
