// SPDX-License-Identifier: Apache-2.0
#include "starpipe/runtime/ranks/lost_rank.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "starpipe/base/environment.hpp"

namespace starpipe::runtime {
namespace {

constexpr int parent_died = SIGUSR1;
constexpr int abort_pause_ms = 500;  // for the launcher to read the line that says why

// Made beforehand: a signal handler may not format, nor read the environment.
std::array<char, 96> orphan_line{};
int slurm_socket = -1;  // PMI's, when srun started the ranks

void write_text(int descriptor, const char* text) {
  [[maybe_unused]] const auto written = write(descriptor, text, std::strlen(text));
}

// hydra ends the job when a rank is lost. srun waits for the other ranks, and these wait for the lost one, so
// srun is asked to end the job in the words of MPI_Abort (PMI-1). The request takes another way than the line
// that was just written: without the pause srun might end before it has read the line.
void abort_job() {
  if (slurm_socket < 0) return;
  poll(nullptr, 0, abort_pause_ms);  // a sleep that a signal handler may call
  write_text(slurm_socket, "cmd=abort exitcode=1\n");
}

void end_orphan(int /*signal*/) {
  write_text(STDERR_FILENO, orphan_line.data());
  abort_job();
  _exit(1);
}

std::optional<int> number_in_environment(const char* name) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  int number = 0;
  if (std::from_chars(text->data(), text->data() + text->size(), number).ec != std::errc())
    return std::nullopt;
  return number;
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
  if (getppid() != parent) end_orphan(parent_died);  // it died before prctl
}

}  // namespace

std::optional<int> launcher_rank() {
  // The launcher's own variable is read first: Slurm's may have the number of the daemon that started this
  // process.
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const std::optional<int> rank = number_in_environment(name)) return rank;
  }
  return std::nullopt;
}

std::optional<int> watch_over_rank() {
  // Of the launchers that speak PMI, only srun gives a job number.
  if (environment("PMI_JOBID")) slurm_socket = number_in_environment("PMI_FD").value_or(-1);
  const pid_t parent = getpid();
  std::fflush(nullptr);  // else parent and child would both print the buffered output
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
  abort_job();
  return 1;
}

}  // namespace starpipe::runtime
