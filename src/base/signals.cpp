// SPDX-License-Identifier: Apache-2.0
#include "base/signals.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "starpipe/base/index.hpp"

namespace starpipe {
namespace {

// A signal handler may not allocate, format or lock: names and lines are ready in static memory.
enum class SlotState : std::uint8_t { free, filling, used };
struct FileSlot {
  std::atomic<SlotState> state = SlotState::free;
  std::array<char, PATH_MAX> file{};
};
std::array<FileSlot, 64> slots;

using Line = std::array<char, 128>;
std::array<Line, ending_signals.size()> lines{};
int pause_before_line_ms = 0;
bool says_line = false;

void handle_ending_signal(int signal, siginfo_t* info, void* /*context*/) {
  remove_files_now();
  const bool another_says_it = pause_before_line_ms > 0 && info->si_pid == getppid();
  if (says_line && !another_says_it) {
    sleep_through_signals(std::chrono::milliseconds(pause_before_line_ms));
    if (isatty(STDERR_FILENO) == 1) write_text(STDERR_FILENO, "\r\033[K");  // a progress line may be there
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (ending_signals[i] == signal) write_text(STDERR_FILENO, lines[i].data());
    }
  }
  _exit(status_of_signal(signal));
}

// By signal. A signal ignored at the start stays ignored, though a library may have given it a handler before
// `main`: UCX does so with SIGHUP.
std::array<bool, NSIG> ignored_at_start{};

// True if the signal is to end this process. A timer's signal whose handler is not ours belongs to a
// profiler, which expects the signal many times per second.
bool is_ending(int signal) {
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  if (ignored_at_start[index(signal)] || now.sa_handler == SIG_IGN) return false;
  const bool of_timer = signal == SIGALRM || signal == SIGVTALRM || signal == SIGPROF;
  return !of_timer || now.sa_handler == SIG_DFL || now.sa_sigaction == handle_ending_signal;
}

// The handler runs with the other ending signals held back.
void set_action(int signal, struct sigaction action) {
  action.sa_mask = ending_signal_set();
  sigaction(signal, &action, nullptr);
}

}  // namespace

std::optional<int> signal_of_status(int status) {
  const int signal = status - status_of_signal(0);
  if (std::ranges::find(ending_signals, signal) == ending_signals.end()) return std::nullopt;
  return signal;
}

std::string signal_text(int signal) { return fmt::format("signal {} ({})", signal, strsignal(signal)); }

void note_ignored_signals() noexcept {
  for (const int signal : ending_signals) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN)
      ignored_at_start[index(signal)] = true;
  }
}

sigset_t ending_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : ending_signals) {
    if (is_ending(signal)) sigaddset(&set, signal);
  }
  return set;
}

namespace {

void set_handlers(std::string_view subject, int pause_ms) {
  says_line = !subject.empty();
  pause_before_line_ms = pause_ms;
  const sigset_t set = ending_signal_set();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const int signal = ending_signals[i];
    *fmt::format_to_n(lines[i].data(), lines[i].size() - 1, "{} ended by {}\n", subject, signal_text(signal))
         .out = '\0';
    struct sigaction end {};
    end.sa_sigaction = handle_ending_signal;
    end.sa_flags = SA_SIGINFO;
    if (sigismember(&set, signal) == 1) set_action(signal, end);
    if (ignored_at_start[index(signal)]) std::signal(signal, SIG_IGN);
  }
  std::signal(SIGCHLD, SIG_DFL);
}

}  // namespace

void end_on_signals(std::string_view subject, int pause_ms) {
  set_handlers(subject, pause_ms);
  unblock_ending_signals();
}

void hold_signals_to_end_on(std::string_view subject, int pause_ms) {
  const sigset_t set = ending_signal_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  set_handlers(subject, pause_ms);
}

void unblock_ending_signals() {
  const sigset_t set = ending_signal_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void reset_signals() {
  const sigset_t set = ending_signal_set();
  for (const int signal : ending_signals) {
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    if (sigismember(&set, signal) == 1) set_action(signal, standard);
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void remove_files_now() noexcept {
  for (const FileSlot& slot : slots) {
    if (slot.state == SlotState::used) unlink(slot.file.data());
  }
}

void sleep_through_signals(std::chrono::milliseconds time) noexcept {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + time;
  for (auto left = time; left.count() > 0;
       left = std::chrono::ceil<std::chrono::milliseconds>(end - steady_clock::now())) {
    poll(nullptr, 0, static_cast<int>(left.count()));
  }
}

void write_text(int descriptor, const char* text) noexcept {
  [[maybe_unused]] const auto written = write(descriptor, text, std::strlen(text));
}

RemovedOnSignal::RemovedOnSignal(const std::filesystem::path& file) {
  const std::string& name = file.native();
  if (name.size() >= PATH_MAX) return;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    SlotState expected = SlotState::free;
    if (!slots[i].state.compare_exchange_strong(expected, SlotState::filling)) continue;
    slots[i].file[name.copy(slots[i].file.data(), name.size())] = '\0';
    slots[i].state = SlotState::used;
    slot_ = static_cast<int>(i);
    return;
  }
}

RemovedOnSignal::~RemovedOnSignal() {
  if (slot_ >= 0) slots[index(slot_)].state = SlotState::free;
}

namespace {

sigset_t pipe_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

bool pipe_signal_is_pending() {
  sigset_t pending;
  return sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

HeldPipeSignal::HeldPipeSignal() noexcept : was_pending_(pipe_signal_is_pending()) {
  const sigset_t set = pipe_signal_set();
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

HeldPipeSignal::~HeldPipeSignal() {
  const sigset_t set = pipe_signal_set();
  constexpr timespec now{};
  if (!was_pending_ && pipe_signal_is_pending()) sigtimedwait(&set, nullptr, &now);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

EndedBySignal::EndedBySignal(int signal)
    : std::runtime_error("ended by " + signal_text(signal)), signal_(signal) {}

HeldSignals::HeldSignals() {
  const sigset_t set = ending_signal_set();
  descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "signalfd");
  pthread_sigmask(SIG_BLOCK, &set, &before_);
}

HeldSignals::~HeldSignals() {
  close(descriptor_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void HeldSignals::check() const {
  signalfd_siginfo taken{};
  if (read(descriptor_, &taken, sizeof taken) != static_cast<ssize_t>(sizeof taken)) return;
  throw EndedBySignal(static_cast<int>(taken.ssi_signo));
}

}  // namespace starpipe
