// SPDX-License-Identifier: Apache-2.0
#include "base/signals.hpp"

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/files.hpp"
#include "support/folder.hpp"

namespace starpipe {
namespace {

namespace fs = std::filesystem;

struct End {
  int status;           // of waitpid
  std::string message;  // standard error
};

/// Calls `work` in a process of its own.
End run(const std::function<void()>& work) {
  std::array<int, 2> pipe{};
  EXPECT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe[1], STDERR_FILENO);
    close(pipe[1]);
    for (const int signal : ending_signals) std::signal(signal, SIG_DFL);  // tests may run under nohup
    work();
    _exit(0);
  }
  close(pipe[1]);
  End end;
  char c = 0;
  while (read(pipe[0], &c, 1) == 1) end.message += c;
  close(pipe[0]);
  EXPECT_EQ(waitpid(child, &end.status, 0), child);
  return end;
}

class Signals : public ::testing::Test {
 protected:
  [[nodiscard]] auto files() const {
    return std::distance(fs::directory_iterator(folder_.path()), fs::directory_iterator());
  }

  Folder folder_;
};

TEST_F(Signals, OfPipesAreErrorsWhileTheyAreHeld) {
  const auto write_to_nobody = [] {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) return -1;
    close(pipe[0]);
    const int problem = write(pipe[1], "x", 1) == 1 ? 0 : errno;
    close(pipe[1]);
    return problem;
  };
  EXPECT_EQ(run([&] {
              const HeldPipeSignal outer;
              {
                const HeldPipeSignal inner;
                if (write_to_nobody() != EPIPE) _exit(1);
              }
              _exit(write_to_nobody() == EPIPE ? 0 : 2);
            }).status,
            0);
  const int status = run([&] {
                       {
                         const HeldPipeSignal held;
                         write_to_nobody();
                       }
                       write_to_nobody();
                     }).status;
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
}

TEST_F(Signals, EachEndsTheProcessWithOneLineAndItsStatus) {
  for (const int signal : ending_signals) {
    const End end = run([signal] {
      end_on_signals("program was");
      std::raise(signal);
    });
    EXPECT_EQ(WEXITSTATUS(end.status), 128 + signal);
    EXPECT_EQ(end.message, "program was ended by " + signal_text(signal) + "\n");
    EXPECT_EQ(signal_of_status(WEXITSTATUS(end.status)), signal);
  }
  EXPECT_EQ(signal_of_status(1), std::nullopt);
  EXPECT_EQ(signal_of_status(status_of_signal(SIGSEGV)), std::nullopt);
}

TEST_F(Signals, LeaveNoHalfWrittenFile) {
  write_file("-o", folder_ / "old", "old");
  const End end = run([this] {
    end_on_signals("");
    write_file("-o", folder_ / "old", [](std::ostream& stream) {
      stream << "half" << std::flush;
      std::raise(SIGTERM);
    });
  });
  EXPECT_EQ(WEXITSTATUS(end.status), 128 + SIGTERM);
  EXPECT_EQ(end.message, "");
  EXPECT_EQ(read_file(folder_ / "old"), "old");
  EXPECT_EQ(files(), 1) << "the temporary file is gone";
}

TEST_F(Signals, AFileIsKeptOnceItsGuardIsGone) {
  write_file("-o", folder_ / "kept", "text");
  const End end = run([this] {
    end_on_signals("");
    { const RemovedOnSignal removed(folder_ / "kept"); }
    std::raise(SIGINT);
  });
  EXPECT_EQ(WEXITSTATUS(end.status), 128 + SIGINT);
  EXPECT_EQ(files(), 1);
}

TEST_F(Signals, AHeldOneWaitsOrIsTaken) {
  const End waited = run([] {
    end_on_signals("later:");
    {
      const HeldSignals held;
      std::raise(SIGUSR1);
      dprintf(STDERR_FILENO, "first\n");
    }
  });
  EXPECT_EQ(waited.message, "first\nlater: ended by " + signal_text(SIGUSR1) + "\n");
  const End taken = run([] {
    end_on_signals("never");
    const HeldSignals outer;
    try {
      const HeldSignals held;
      held.check();
      std::raise(SIGUSR1);
      pollfd wanted{held.descriptor(), POLLIN, 0};
      if (poll(&wanted, 1, 0) == 1) held.check();
    } catch (const EndedBySignal& end) {
      _exit(end.signal());
    }
  });
  EXPECT_EQ(WEXITSTATUS(taken.status), SIGUSR1);
  EXPECT_EQ(taken.message, "");
}

// As when a launcher sends a signal to all ranks: one of them speaks.
TEST_F(Signals, OneOfSeveralProcessesDoesNotNameASignalOfItsParent) {
  for (const bool by_parent : {true, false}) {
    const End end = run([by_parent] {
      end_on_signals("child was", 20);
      const pid_t child = fork();
      if (child == 0) {
        if (!by_parent) std::raise(SIGTERM);
        for (;;) pause();
      }
      if (by_parent) kill(child, SIGTERM);
      waitpid(child, nullptr, 0);
    });
    EXPECT_EQ(end.message, by_parent ? "" : "child was ended by " + signal_text(SIGTERM) + "\n");
  }
}

// As under nohup, and in the background of a script.
TEST_F(Signals, AnIgnoredOneStaysIgnored) {
  for (const int signal : ending_signals) {
    const End end = run([signal] {
      std::signal(signal, SIG_IGN);
      end_on_signals("program was");
      std::raise(signal);
    });
    EXPECT_EQ(end.status, 0) << signal_text(signal);
    EXPECT_EQ(end.message, "");
  }
}

// As UCX does with SIGHUP in a constructor.
TEST_F(Signals, OneThatWasIgnoredBeforeALibraryTookItStaysIgnored) {
  const End end = run([] {
    std::signal(SIGHUP, SIG_IGN);
    note_ignored_signals();
    std::signal(SIGHUP, [](int) { _exit(3); });
    end_on_signals("program was");
    std::raise(SIGHUP);
    const sigset_t set = ending_signal_set();
    if (sigismember(&set, SIGHUP) == 1) _exit(4);
  });
  EXPECT_EQ(end.status, 0);
  EXPECT_EQ(end.message, "");
}

TEST_F(Signals, AProfilerKeepsTheSignalsOfItsTimer) {
  for (const int signal : {SIGALRM, SIGVTALRM, SIGPROF}) {
    const End end = run([signal] {
      std::signal(signal, [](int) { dprintf(STDERR_FILENO, "tick\n"); });
      end_on_signals("program was");
      std::raise(signal);
    });
    EXPECT_EQ(end.status, 0) << signal_text(signal);
    EXPECT_EQ(end.message, "tick\n");
  }
}

// The sleep begins after the late signal's timer, so this signal has come when it ends.
TEST_F(Signals, DoNotCutASleepShort) {
  static volatile std::sig_atomic_t late_has_come = 0;
  const End end = run([] {
    std::signal(SIGUSR1, [](int) { late_has_come = 1; });
    sigevent late{};
    late.sigev_notify = SIGEV_SIGNAL;
    late.sigev_signo = SIGUSR1;
    timer_t timer = nullptr;
    if (timer_create(CLOCK_MONOTONIC, &late, &timer) != 0) _exit(2);
    const itimerspec in_40_ms = {.it_interval = {}, .it_value = {.tv_sec = 0, .tv_nsec = 40'000'000}};
    timer_settime(timer, 0, &in_40_ms, nullptr);
    std::signal(SIGALRM, [](int) {});
    const itimerval often = {.it_interval = {.tv_sec = 0, .tv_usec = 1000},
                             .it_value = {.tv_sec = 0, .tv_usec = 1000}};
    setitimer(ITIMER_REAL, &often, nullptr);
    sleep_through_signals(std::chrono::milliseconds(50));
    _exit(late_has_come == 1 ? 0 : 1);
  });
  EXPECT_EQ(end.status, 0);
}

// The process that starts a program may have blocked signals, or ignore SIGCHLD, and a program inherits both.
TEST_F(Signals, ABlockedOneEndsTheProgram) {
  for (const int signal : ending_signals) {
    const End end = run([signal] {
      sigset_t set;
      sigfillset(&set);
      pthread_sigmask(SIG_BLOCK, &set, nullptr);
      end_on_signals("program was");
      std::raise(signal);
    });
    EXPECT_EQ(WEXITSTATUS(end.status), status_of_signal(signal));
    EXPECT_EQ(end.message, "program was ended by " + signal_text(signal) + "\n");
  }
}

TEST_F(Signals, AProgramHearsOfTheEndOfItsChildren) {
  const End end = run([] {
    std::signal(SIGCHLD, SIG_IGN);
    end_on_signals("program was");
    const pid_t child = fork();
    if (child == 0) _exit(0);
    if (waitpid(child, nullptr, 0) != child) _exit(3);
  });
  EXPECT_EQ(end.status, 0);
}

TEST_F(Signals, AForkedProcessCanHaveThoseOfANewProgram) {
  const End end = run([] {
    end_on_signals("program was");
    const HeldSignals held;
    std::raise(SIGTERM);
    reset_signals();
  });
  EXPECT_TRUE(WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGTERM) << end.status;
  EXPECT_EQ(end.message, "");
}

}  // namespace
}  // namespace starpipe
