// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/mpi_polling.hpp"

#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/ranks/clock.hpp"

namespace starpipe::runtime {
namespace {

std::atomic<Polling> polling = Polling::eager;

// Polls that found nothing since this thread last started or finished a transfer. A large transfer takes many
// polls, and sleeping between them would multiply its time: the thread sleeps only after more vain polls than
// a transfer takes, and then once a round over the open requests.
thread_local int vain_polls = 0;

void rest(bool yields) {
  const int polls_of_a_transfer = yields ? 100 : 300;
  const int polls_of_a_round = yields ? 16 : 64;
  if (++vain_polls < polls_of_a_transfer) {
    if (yields) std::this_thread::yield();
    return;
  }
  vain_polls -= polls_of_a_round;
  thread_local const bool on_time = (wake_on_time(), true);
  static_cast<void>(on_time);
  std::this_thread::sleep_for(std::chrono::microseconds(20));
}

}  // namespace

void poll_mpi(Polling chosen) { polling = chosen; }

void note_poll(bool done) {
  const Polling chosen = polling.load(std::memory_order_relaxed);
  if (chosen == Polling::eager) return;
  if (done) {
    note_transfer();
  } else {
    rest(chosen == Polling::yielding);
  }
}

void note_transfer() { vain_polls = 0; }

}  // namespace starpipe::runtime
