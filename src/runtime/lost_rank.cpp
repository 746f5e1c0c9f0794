// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/lost_rank.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace starpipe::runtime {
namespace {

constexpr int parent_died = SIGUSR1;

// For a signal handler, which may not format.
std::array<char, 96> orphan_line{};

void end_orphan(int /*signal*/) {
  [[maybe_unused]] const auto written =
      write(STDERR_FILENO, orphan_line.data(), std::strlen(orphan_line.data()));
  _exit(1);
}

std::string who() {
  const std::optional<int> rank = launcher_rank();
  return rank ? fmt::format("rank {}", *rank) : "the run";
}

void follow_parent(pid_t parent) {
  fmt::format_to_n(orphan_line.data(), orphan_line.size() - 1,
                   "starpipe: {} was lost: process {} was killed\n", who(), parent);
  struct sigaction action {};
  action.sa_handler = end_orphan;
  sigaction(parent_died, &action, nullptr);
  prctl(PR_SET_PDEATHSIG, parent_died);
  if (getppid() != parent) end_orphan(parent_died);  // it died before we asked to be told
}

}  // namespace

std::optional<int> launcher_rank() {
  // The launcher's own variable goes first; Slurm's may be that of a daemon around it.
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    const char* const text = std::getenv(name);
    if (text == nullptr) continue;
    int rank = 0;
    const std::string_view word = text;
    if (std::from_chars(word.data(), word.data() + word.size(), rank).ec == std::errc()) return rank;
  }
  return std::nullopt;
}

std::optional<int> watch_over_rank() {
  const pid_t parent = getpid();
  std::fflush(nullptr);  // what is buffered would be printed twice
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    follow_parent(parent);
    return std::nullopt;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  fmt::print(stderr, "starpipe: {} was lost: process {} was ended by signal {} ({})\n", who(), child, signal,
             strsignal(signal));
  return 1;
}

}  // namespace starpipe::runtime
