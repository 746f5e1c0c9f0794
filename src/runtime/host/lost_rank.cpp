// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/lost_rank.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/messages.hpp"
#include "base/signals.hpp"
#include "runtime/host/signal_requests.hpp"

namespace starpipe::runtime {
namespace {

// The kernel sends this signal to the child when the parent dies, and to the parent when the launcher's
// process on this host dies. People and batch systems do not send it.
int parent_died() { return SIGRTMAX - 1; }

// The child is killed if it has not ended this long after a signal that ends it.
constexpr timespec max_for_child{.tv_sec = 2, .tv_nsec = 0};

// A launcher that ends a job kills both processes of a rank. The parent waits this long to be killed, too,
// before it says that the child was lost.
constexpr std::chrono::milliseconds pause_after_kill(500);

// Made beforehand: a signal handler may not format, nor read the environment.
std::array<char, 96> orphan_line{};
bool hydra = false;                           // true if hydra started the parent
pid_t launched = 0;                           // the parent, which the launcher started
pid_t launcher = 0;                           // the process that started the parent
int pmi_socket = -1;                          // connection to the launcher; -1 when it does not use PMI-1
std::atomic<bool>* work_has_ended = nullptr;  // in memory that parent and child share
pid_t left_in_mpi = 0;                        // thread that `leave_mpi_at_exit` leaves in MPI; 0: none

// Returns the PMI-1 message that ends the job. A signal handler may call it.
std::array<char, 32> abort_request(int status) {
  std::array<char, 32> text{"cmd=abort exitcode="};
  char* const digits = text.data() + std::strlen(text.data());
  *std::to_chars(digits, text.data() + text.size() - 2, status).ptr = '\n';
  return text;  // the rest is zeros
}

// Sends the launcher a PMI-1 request to end the job, as MPI_Abort does, after a pause. Without the request
// srun would wait for the other ranks, which wait for the lost one; hydra would kill the others and return
// their exit status in place of ours.
void abort_job(const char* request) {
  if (pmi_socket < 0) return;
  sleep_through_signals(std::chrono::milliseconds(abort_pause_ms));
  write_text(pmi_socket, request);
}

void end_orphan(int /*signal*/) {
  if (getppid() == launched) return;  // somebody else's signal
  remove_files_now();
  write_text(STDERR_FILENO, orphan_line.data());
  abort_job(abort_request(1).data());
  _exit(1);
}

// Keeps a thread of this process from running further; returns when it has stopped, or after 100 ms.
void halt(pid_t thread) {
  static std::atomic<bool> is_halted = false;
  const int signal = SIGRTMAX - 2;
  struct sigaction action {};
  action.sa_handler = [](int /*signal*/) {
    is_halted = true;
    for (;;) pause();
  };
  sigaction(signal, &action, nullptr);
  if (thread == 0 || syscall(SYS_tgkill, getpid(), thread, signal) != 0) return;
  for (int i = 0; i < 100 && !is_halted; ++i) sleep_through_signals(std::chrono::milliseconds(1));
}

// Tells the launcher by PMI-1 that this rank has ended, and waits up to a second for its answer: hydra's
// proxy dies if it cannot send it.
void finalize_pmi() {
  constexpr std::string_view request = "cmd=finalize\n";
  constexpr timeval max_wait{.tv_sec = 1, .tv_usec = 0};
  setsockopt(pmi_socket, SOL_SOCKET, SO_RCVTIMEO, &max_wait, sizeof max_wait);
  if (send(pmi_socket, request.data(), request.size(), MSG_NOSIGNAL) < 0) return;
  std::array<char, 64> answer{};
  ssize_t received = 0;
  do {
    received = recv(pmi_socket, answer.data(), answer.size(), 0);
  } while (received > 0 && answer[static_cast<std::size_t>(received) - 1] != '\n');
}

// Returns nullopt if the variable is not a number: it is the launcher's, not the user's.
std::optional<int> launcher_number(const char* name) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  int number = 0;
  if (std::from_chars(text->data(), text->data() + text->size(), number).ec != std::errc())
    return std::nullopt;
  return number;
}

std::string name_of_process(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  std::getline(file, name);
  return name;  // at most its first 15 characters
}

// True for the process that starts ranks on a host: hydra's proxy, Slurm's step daemon, and Open MPI's daemon
// or, on the host where it runs, its launcher.
bool starts_ranks(std::string_view name) {
  constexpr std::array names{"hydra_pmi_proxy", "slurmstepd", "orted",           "orterun",
                             "mpirun",          "mpiexec",    "mpiexec.openmpi", "mpirun.openmpi"};
  return std::ranges::find(names, name) != names.end();
}

std::string who() {
  const std::optional<int> rank = launcher_rank();
  return rank ? fmt::format("rank {}", *rank) : "the run";
}

void follow_parent() {
  fmt::format_to_n(orphan_line.data(), orphan_line.size() - 1,
                   "starpipe: {} was lost: process {} was killed\n", who(), launched);
  struct sigaction action {};
  action.sa_handler = end_orphan;
  sigaction(parent_died(), &action, nullptr);
  prctl(PR_SET_PDEATHSIG, parent_died());
  end_orphan(0);  // the parent may have died before prctl
}

// The end of the child, as the parent has seen it.
struct ChildEnd {
  int status = 0;  // of waitpid
  int asked = 0;   // ending signal that the parent received; 0: none
  bool asked_by_launcher = false;
  bool launcher_died = false;
};

// Waits for a signal of `awaited`, at most `max` (nullptr: indefinitely), and notes in `end` who sent it.
// Returns the signal, or -1 with errno.
int take_signal(ChildEnd& end, const sigset_t& awaited, const timespec* max) {
  siginfo_t info{};
  const int signal = sigtimedwait(&awaited, &info, max);
  if (signal <= 0 || signal == SIGCHLD) return signal;
  if (signal == parent_died()) {  // also comes when only a thread of the launcher has ended
    end.launcher_died = getppid() != launcher;
    return signal;
  }
  if (!is_request(signal)) end.asked = signal;
  end.asked_by_launcher = end.asked_by_launcher || info.si_pid == getppid();
  return signal;
}

// `awaited`: signals that must be blocked. Forwards the signals that the parent receives to the child, which
// removes its temporary files and ends, or obeys a request. Sends the child SIGTERM if the launcher dies,
// which then cannot end the ranks; and SIGKILL if it does not end within `max_for_child`.
ChildEnd wait_for_child(pid_t child, const sigset_t& awaited) {
  ChildEnd end;
  for (;;) {
    const pid_t ended = waitpid(child, &end.status, WNOHANG);
    if (ended < 0) throw std::system_error(errno, std::generic_category(), "waitpid");
    if (ended == child) return end;
    const bool is_ending = end.asked != 0 || end.launcher_died;
    const int signal = take_signal(end, awaited, is_ending ? &max_for_child : nullptr);
    if (signal == parent_died()) {
      if (end.launcher_died) kill(child, SIGTERM);
    } else if (signal > 0 && signal != SIGCHLD) {
      kill(child, signal);
    }
    if (signal < 0 && errno == EAGAIN) kill(child, SIGKILL);
  }
}

// Returns the signal that ended the run, whether the parent or the child received it; 0 if none did.
int signal_of(const ChildEnd& end) {
  if (end.asked != 0) return end.asked;
  if (WIFSIGNALED(end.status)) return WTERMSIG(end.status);
  return signal_of_status(WEXITSTATUS(end.status)).value_or(0);
}

// Waits. Returns true if the launcher asked this rank to end, before or meanwhile.
bool launcher_asks(ChildEnd& end, const sigset_t& awaited, std::chrono::milliseconds pause) {
  sleep_through_signals(pause);
  constexpr timespec now{};
  while (take_signal(end, awaited, &now) > 0) {  // signals that came after the child had ended
  }
  return end.asked_by_launcher;
}

// True if this rank prints which signal ended the run. Rank 0 always does. Another rank waits first: if the
// signal reached rank 0 too, rank 0 prints and the job ends during this wait. After it, the rank prints
// unless the launcher sent the signal, since the launcher sends it to rank 0 too.
bool prints_signal(ChildEnd& end, const sigset_t& awaited) {
  if (launcher_rank().value_or(0) == 0) return true;
  return !launcher_asks(end, awaited, std::chrono::milliseconds(signal_line_pause_ms()));
}

}  // namespace

std::optional<int> launcher_rank() {
  // The launcher's own variable is read first: Slurm's may have the number of the daemon that started this
  // process.
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const std::optional<int> rank = launcher_number(name)) return rank;
  }
  return std::nullopt;
}

std::optional<pid_t> launcher_of_host() {
  for (pid_t process = getppid(); process > 0;) {
    const std::string name = name_of_process(process);
    if (starts_ranks(name)) return process;
    std::ifstream status(fmt::format("/proc/{}/status", process));
    process = 0;
    for (std::string line; std::getline(status, line);) {
      constexpr std::string_view parent = "PPid:\t";
      if (line.starts_with(parent))
        std::from_chars(line.data() + parent.size(), line.data() + line.size(), process);
    }
  }
  return std::nullopt;
}

bool has_own_user_namespace() {
  std::string map;
  std::ifstream file("/proc/self/uid_map");
  if (std::getline(file, map) && map.ends_with(" 4294967295")) return false;  // the first namespace
  const auto space_of = [](const std::string& process) {
    std::error_code hidden;
    return std::filesystem::read_symlink(fmt::format("/proc/{}/ns/user", process), hidden);
  };
  const std::optional<pid_t> launched_by = launcher_of_host();
  return !launched_by || space_of(fmt::format("{}", *launched_by)) != space_of("self");
}

bool has_own_shared_memory() {
  struct stat own {};
  struct stat of_launcher {};
  if (stat("/dev/shm", &own) != 0) return false;
  const std::optional<pid_t> launched_by = launcher_of_host();
  if (!launched_by) return true;  // in another container, too
  // Slurm may give a job a /dev/shm of its own, in which its daemon is not.
  if (name_of_process(*launched_by) == "slurmstepd") return false;
  return stat(fmt::format("/proc/{}/root/dev/shm", *launched_by).c_str(), &of_launcher) == 0 &&
         of_launcher.st_dev != own.st_dev;
}

int signal_line_pause_ms() { return launcher_rank().value_or(0) == 0 ? 0 : 1500; }

bool can_end_job() { return launcher_number("PMI_FD").has_value(); }

void end_job(int status) {
  pmi_socket = launcher_number("PMI_FD").value_or(-1);
  end_watched_job(status);
}

void end_before_mpi(const std::string& reason, int status) {
  const int rank = launcher_rank().value_or(0);
  sleep_through_signals(std::chrono::milliseconds(signal_line_pause_ms() * std::min(rank, 10)));
  print_message(fmt::format("starpipe: {}{}\n", rank == 0 ? "" : fmt::format("rank {}: ", rank), reason));
  end_job(status);
}

void report_and_end_job(int rank, int ranks, const std::string& reason) {
  print_message(fmt::format("starpipe: rank {}: {}\n", rank, reason));
  if (ranks == 1 || can_end_job()) end_job();
  std::this_thread::sleep_for(std::chrono::milliseconds(abort_pause_ms));
}

void end_watched_job(int status) noexcept {
  remove_files_now();
  abort_job(abort_request(status).data());
  _exit(status);
}

void end_stopped_run() {
  if (!hydra) return;
  std::fflush(nullptr);
  pmi_socket = launcher_number("PMI_FD").value_or(-1);
  if (launcher_rank() == 0) abort_job(fmt::format("cmd=abort exitcode={}\n", status_of_stopped_run).c_str());
  sleep_through_signals(
      std::chrono::milliseconds(10 * abort_pause_ms));  // hydra ends the ranks within this time
  _exit(status_of_stopped_run);
}

void note_end_of_work() noexcept {
  if (work_has_ended != nullptr) *work_has_ended = true;
}

bool is_watched() noexcept { return launched != 0 && launched != getpid(); }

std::optional<int> watch_over_rank() {
  pmi_socket = launcher_number("PMI_FD").value_or(-1);
  launched = getpid();
  launcher = getppid();
  const std::string parent = name_of_process(launcher);
  hydra = parent == "hydra_pmi_proxy";
  sigset_t awaited = ending_signal_set();
  sigaddset(&awaited, SIGCHLD);
  sigaddset(&awaited, parent_died());
  sigset_t before;
  sigprocmask(SIG_BLOCK, &awaited, &before);
  // The child gets these unblocked: the program blocks ending signals until now, or its parent blocked them.
  for (const int signal : ending_signals) sigdelset(&before, signal);
  sigdelset(&before, parent_died());
  share_signal_requests();
  work_has_ended = shared_with_child<bool>();
  std::fflush(nullptr);  // else parent and child would both print the buffered output
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    end_on_signals("");  // the parent says why
    sigprocmask(SIG_SETMASK, &before, nullptr);
    follow_parent();
    return std::nullopt;
  }
  // Any other parent, such as a shell, may end before a run that continues in the background.
  if (starts_ranks(parent)) {
    prctl(PR_SET_PDEATHSIG, parent_died());
    if (getppid() != launcher) raise(parent_died());  // the launcher died before prctl
  }
  ChildEnd end = wait_for_child(child, awaited);
  if (end.launcher_died) {
    print_message(fmt::format("starpipe: {} was lost: its launcher has died\n", who()));
    return 1;
  }
  const int signal = signal_of(end);
  if (signal == 0) {
    const int status = WEXITSTATUS(end.status);
    if (status != 0 || *work_has_ended) return status;
    sleep_through_signals(std::chrono::milliseconds(signal_line_pause_ms()));
    print_message(
        fmt::format("starpipe: {} has not come to its end: its process {} was ended with status 0, as "
                    "by a call of exit in a plug-in\n",
                    who(), child));
    abort_job(abort_request(1).data());
    return 1;
  }
  if (!signal_of_status(status_of_signal(signal))) {
    if (signal == SIGKILL) sleep_through_signals(pause_after_kill);
    // StarPU-MPI aborts when MPI fails because another rank is lost, and Open MPI writes to the lost rank's
    // connection. That rank's parent speaks first, and the launcher ends the others.
    const bool may_follow = (signal == SIGABRT || signal == SIGPIPE) && launcher_rank();
    if (may_follow && launcher_asks(end, awaited, 3 * pause_after_kill)) return status_of_signal(signal);
    print_message(fmt::format("starpipe: {} was lost: process {} was ended by {}\n", who(), child,
                              signal_text(signal)));
  } else if (prints_signal(end, awaited)) {
    print_message(fmt::format("starpipe: {} was ended by {}\n", who(), signal_text(signal)));
  }
  abort_job(abort_request(status_of_signal(signal)).data());
  return status_of_signal(signal);
}

void leave_mpi_at_exit(pid_t in_mpi) {
  pmi_socket = launcher_number("PMI_FD").value_or(-1);
  left_in_mpi = in_mpi;
  // The last function that is registered is the first that runs.
  on_exit(
      [](int status, void* /*unused*/) {
        std::fflush(nullptr);
        halt(left_in_mpi);  // it would read the launcher's answer, which it does not expect
        finalize_pmi();
        _exit(status);
      },
      nullptr);
}

Deadline::Deadline(std::chrono::milliseconds limit, std::function<void()> late)
    : thread_([this, limit, late = std::move(late)](const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        // Its result does not count: libstdc++ returns false if the stop comes in a certain moment.
        wake_.wait_for(lock, stop, limit, [] { return false; });
        if (!stop.stop_requested()) late();
      }) {}

}  // namespace starpipe::runtime
