// SPDX-License-Identifier: Apache-2.0
// How a process ends when a signal asks it to: it removes its temporary files, prints one line, and its exit
// status names the signal.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace starpipe {

/// The signals by which people, shells and batch systems ask a process to end.
inline constexpr std::array ending_signals = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM,   SIGUSR1,
                                              SIGUSR2, SIGXCPU, SIGALRM, SIGVTALRM, SIGPROF};

/// Returns the exit status of a process that `signal` has ended, as shells give it.
constexpr int status_of_signal(int signal) { return 128 + signal; }

/// Returns the ending signal that an exit status stands for, or nullopt for all other statuses.
std::optional<int> signal_of_status(int status);

/// Returns the signal's number and name: "signal 15 (Terminated)".
std::string signal_text(int signal);

/// Notes which ending signals the process ignores: SIGHUP under nohup, SIGINT and SIGQUIT in the background
/// of a script. They stay ignored. A program calls it from `.preinit_array`, before the constructors of
/// shared libraries, since some of these install handlers. Calls nothing but sigaction. Without
/// this call, a signal counts as ignored if the process ignores it when a function below is called.
void note_ignored_signals() noexcept;

/// Returns the set of ending signals. It lacks the signals that the process ignores, and signals of timers
/// (SIGALRM, SIGVTALRM, SIGPROF) that a profiler handles.
sigset_t ending_signal_set();

/// For programs only, since signals belong to the program. From now on an ending signal removes the files of
/// `RemovedOnSignal`, writes one line on standard error and ends the process with `status_of_signal`. The
/// line is `subject` + " ended by signal 15 (Terminated)". An empty subject: no line.
///
/// A process inherits blocked signals, and whether it ignores SIGCHLD, from the process that starts it. The
/// ending signals are unblocked in the calling thread, and SIGCHLD gets its default action: else the program
/// would not hear of signals, or of the end of its own children.
///
/// `pause_ms`: milliseconds before the line. Give 0 in the first process that a launcher has started, and
/// without a launcher; in the launcher's other processes give a pause, so that one process prints and not
/// all. A signal to the whole run reaches the first process, which prints at once, and the launcher ends the
/// others during their pause. A signal from the launcher, the parent of these processes, reaches the first
/// process too: the others then print nothing. Not thread-safe; the signals themselves may come on any
/// thread.
void end_on_signals(std::string_view subject, int pause_ms = 0);

/// Does the same, but the ending signals are blocked in the calling thread, and so in the threads that it
/// starts, until `unblock_ending_signals`. For a process that does not know yet whether other processes wait
/// for it.
void hold_signals_to_end_on(std::string_view subject, int pause_ms = 0);

/// Unblocks the signals that hold_signals_to_end_on() blocked. If one of them has come since, it ends the
/// process now.
void unblock_ending_signals();

/// For a process that was just forked: gives the signals of `ending_signal_set` their default action and
/// unblocks them.
void reset_signals();

/// Removes the files of all `RemovedOnSignal` objects now. A signal handler may call it.
void remove_files_now() noexcept;

/// Sleeps. A signal handler may call it. Signals do not cut it short.
void sleep_through_signals(std::chrono::milliseconds time) noexcept;

/// Writes the text to an open descriptor. A signal handler may call it. An error is ignored.
void write_text(int descriptor, const char* text) noexcept;

/// While this object lives, a signal that ends the process (see end_on_signals) removes the file first. The
/// destructor keeps the file. Thread-safe. Does nothing if 64 other objects exist, or if the name is
/// longer than the system allows.
class RemovedOnSignal {
 public:
  explicit RemovedOnSignal(const std::filesystem::path& file);
  ~RemovedOnSignal();
  RemovedOnSignal(const RemovedOnSignal&) = delete;
  RemovedOnSignal& operator=(const RemovedOnSignal&) = delete;

 private:
  int slot_ = -1;
};

/// During this object's lifetime a write of this thread to a pipe whose reader has ended is an error (EPIPE)
/// and no signal, which would end the process.
class HeldPipeSignal {
 public:
  HeldPipeSignal() noexcept;
  ~HeldPipeSignal();
  HeldPipeSignal(const HeldPipeSignal&) = delete;
  HeldPipeSignal& operator=(const HeldPipeSignal&) = delete;

 private:
  sigset_t before_{};
  bool was_pending_;
};

/// Thrown by a wait that an ending signal has cut short, so that the stack unwinds and cleans up.
class EndedBySignal : public std::runtime_error {
 public:
  explicit EndedBySignal(int signal);
  [[nodiscard]] int signal() const { return signal_; }

 private:
  int signal_;
};

/// Blocks the ending signals in this thread during its lifetime. A signal that arrives stays pending until
/// the outermost such object ends, or until check() takes it. Meant for processes with one thread. Objects
/// nest.
class HeldSignals {
 public:
  /// Throws std::system_error when the system has no descriptor left.
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// For poll(): readable when a signal is pending. Closed on exec.
  [[nodiscard]] int descriptor() const { return descriptor_; }
  /// If a signal is pending, takes it and throws EndedBySignal.
  void check() const;

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

}  // namespace starpipe
