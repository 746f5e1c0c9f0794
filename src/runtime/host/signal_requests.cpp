// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/signal_requests.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <new>
#include <system_error>

#include <sys/mman.h>

#include "base/signals.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::int64_t same_signal_ns = 2'000'000'000;

// Ranks that live call accept_signal_requests within less time of each other.
constexpr std::int64_t max_for_others_ns = 1'000'000'000;

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free);

// For signal handlers, which may neither allocate nor lock.
std::atomic<int> own_signal = 0;
// 0: signals ask for nothing. In memory that parent and child share.
std::atomic<int>* shared_signal = &own_signal;
std::atomic<unsigned> requested = 0;          // bits of SignalRequest
std::atomic<std::int64_t> checkpoint_at = 0;  // when the last request was noted; 0: never
std::atomic<std::int64_t> stop_at = 0;
struct sigaction checkpoint_before {};
struct sigaction stop_before {};

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void end_by(int signal, const struct sigaction& before) {
  sigaction(signal, &before, nullptr);
  raise(signal);
}

void note_request(int signal) {
  const bool stops = signal == SIGTERM;
  std::atomic<std::int64_t>& noted = stops ? stop_at : checkpoint_at;
  const std::int64_t now = now_ns();
  const std::int64_t last = noted.load();
  if (last != 0 && now - last < same_signal_ns) return;
  if (stops && last != 0) {  // the second one: it arrives again when this handler has ended
    end_by(SIGTERM, stop_before);
    return;
  }
  noted = now;
  requested |= static_cast<unsigned>(stops ? SignalRequest::stop : SignalRequest::checkpoint);
}

void take_over(int signal, struct sigaction& before) {
  const sigset_t ending = ending_signal_set();
  if (sigismember(&ending, signal) != 1) return;
  struct sigaction note {};
  note.sa_handler = note_request;
  note.sa_mask = ending;
  note.sa_flags = SA_RESTART;
  sigaction(signal, &note, &before);
}

// Ends this process by a signal that has come and has ended another rank, which then never arrives.
void end_with_others() {
  const auto is_old = [](std::int64_t noted) { return noted != 0 && now_ns() - noted > max_for_others_ns; };
  if (is_old(stop_at)) end_by(SIGTERM, stop_before);
  if (is_old(checkpoint_at)) end_by(*shared_signal, checkpoint_before);
}

}  // namespace

void accept_signal_requests(const Mpi& mpi, int checkpoint_signal) {
  // The parent first: it must not take for the end what this process takes for a request.
  *shared_signal = checkpoint_signal;
  take_over(checkpoint_signal, checkpoint_before);
  take_over(SIGTERM, stop_before);
  MPI_Request all_accept = MPI_REQUEST_NULL;
  MPI_Ibarrier(mpi.comm(), &all_accept);
  wait_for(all_accept, end_with_others);
}

SignalRequest take_signal_requests() { return static_cast<SignalRequest>(requested.exchange(0)); }

void share_signal_requests() { shared_signal = shared_with_child<int>(); }

bool is_request(int signal) {
  const int checkpoint_signal = *shared_signal;
  return checkpoint_signal != 0 && (signal == checkpoint_signal || signal == SIGTERM);
}

}  // namespace starpipe::runtime
