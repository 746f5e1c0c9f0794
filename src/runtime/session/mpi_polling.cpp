// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/mpi_polling.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/host/clock.hpp"
#include "runtime/host/topology.hpp"
#include "runtime/host/ucx.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

using std::chrono::microseconds;

std::atomic<Polling> polling = Polling::eager;
std::atomic<int> cores_of_rank = 1;
std::atomic<int> computing = 0;  // tasks

// Returns the PUs of StarPU-MPI's thread; empty: it may run on all PUs of the rank. Set before the thread
// starts.
std::string& own_pus() {
  static std::string pus;
  return pus;
}

// The sleep of StarPU-MPI's thread, which other threads may end.
class Sleep {
 public:
  // `wanted` is asked once more when other threads can end the sleep, so that none ends it too early.
  template <class Wanted>
  void sleep(microseconds max, Wanted wanted) {
    wake_on_time();
    std::unique_lock lock(mutex_);
    sleeps_ = true;
    woken_.wait_for(lock, max, [&] { return !sleeps_.load() || !wanted(); });
    sleeps_ = false;
  }
  void end() {
    if (!sleeps_.load()) return;
    {
      const std::scoped_lock lock(mutex_);
      sleeps_ = false;
    }
    woken_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable woken_;
  std::atomic<bool> sleeps_ = false;
};

Sleep& mpi_sleep() {
  static Sleep sleep;
  return sleep;
}

// A word for each rank of the run, in memory that the ranks of a host share: 1 while StarPU-MPI's thread of
// that rank is asleep, or about to sleep.
struct Mailbox {
  alignas(64) std::atomic<std::uint32_t> is_asleep;
  std::atomic<bool> is_open;  // set before the first barrier: the rank uses this memory
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

struct Mailboxes {
  Mailbox* all = nullptr;
  std::size_t ranks = 0;
  std::size_t own = 0;
  bool of_all_ranks = false;  // each rank of the run wakes this one: none is on another host
} mailboxes;

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

void wake(std::size_t rank) {
  std::atomic<std::uint32_t>& word = mailboxes.all[rank].is_asleep;
  if (word.load() != 0 && word.exchange(0) != 0) futex(word, FUTEX_WAKE, 1, nullptr);
}

// The rounds of StarPU-MPI's thread.
struct Rounds {
  bool is_mpi_thread = false;
  bool yields = false;  // this StarPU yields where it has given up its lock
  bool is_about_to_sleep = false;
  int vain = 0;            // rounds since something was started or found
  int vain_polls = 0;      // in this round; with a StarPU that does not yield, since something was found
  microseconds napped{0};  // since something was started or found
  std::vector<std::size_t> to_wake;  // ranks, at the end of this round

  void start_over() {
    vain = 0;
    napped = microseconds(0);
  }
  // Each nap ends with an interruption of the worker that computes on this core. So naps grow with the wait.
  microseconds next_nap() {
    const microseconds nap = std::clamp(napped / 4, microseconds(50), microseconds(500));
    napped += nap;
    return nap;
  }
};
thread_local Rounds rounds;

// A task of this worker has ended since the worker woke StarPU-MPI's thread.
thread_local bool has_result = true;

// A round that found something is often followed by another one.
constexpr int eager_rounds = 2;
// Most answers come earlier. Emulated workers, which sleep, must wake on time.
constexpr int yielding_rounds = 100;

// In the first call it only says that it is about to sleep: what was sent before is found in the next round,
// and what is sent later ends the sleep. A round may find only the first of several messages, and this one
// may be for another thread. So the thread does not sleep after such a round.
void sleep_until_called(bool transfer) {
  if (found_by_ucx()) return;
  std::atomic<std::uint32_t>& word = mailboxes.all[mailboxes.own].is_asleep;
  if (!std::exchange(rounds.is_about_to_sleep, true)) {
    word = 1;
    return;
  }
  wake_on_time();
  // A message from another host wakes no thread.
  const microseconds unasked(mailboxes.of_all_ranks ? 2000 : 500);
  const std::chrono::nanoseconds limit = transfer ? rounds.next_nap() : patience.load() * unasked;
  const timespec time{.tv_sec = 0, .tv_nsec = limit.count()};
  if (word.load() == 1) futex(word, FUTEX_WAIT, 1, &time);
  word = 0;
  rounds.is_about_to_sleep = false;
}

bool all_cores_compute() { return computing.load() >= cores_of_rank.load(std::memory_order_relaxed); }

void rest(bool transfer) {
  const auto always = [] { return true; };
  if (polling.load(std::memory_order_relaxed) == Polling::called) {
    sleep_until_called(transfer);
  } else if (all_cores_compute()) {
    mpi_sleep().sleep(transfer ? microseconds(2000) : microseconds(5000), all_cores_compute);
    rounds.start_over();
  } else if (polling.load(std::memory_order_relaxed) == Polling::napping) {
    mpi_sleep().sleep(rounds.next_nap(), always);
  } else if (rounds.vain < yielding_rounds) {
    syscall(SYS_sched_yield);  // the function of this name may be the one that called us
  } else {
    mpi_sleep().sleep(microseconds(20), always);
  }
}

}  // namespace

void poll_mpi(Polling chosen, int cores, const std::string& pus) {
  own_pus() = pus;
  cores_of_rank = cores;
  polling = chosen;
}

void note_poll(bool done) {
  if (polling.load(std::memory_order_relaxed) == Polling::eager || !rounds.is_mpi_thread) return;
  if (done) {
    rounds.start_over();
    rounds.vain_polls = 0;
    return;
  }
  ++rounds.vain_polls;
  if (rounds.yields) return;
  const bool yields = polling.load(std::memory_order_relaxed) == Polling::yielding;
  // A large transfer takes many polls, and sleeping between them would multiply its time.
  const int polls_of_a_transfer = yields ? 100 : 300;
  const int polls_of_a_round = yields ? 16 : 64;
  if (rounds.vain_polls < polls_of_a_transfer) {
    if (yields) syscall(SYS_sched_yield);
    return;
  }
  rounds.vain_polls -= polls_of_a_round;
  std::this_thread::sleep_for(microseconds(20));
}

void note_transfer() {
  if (!rounds.is_mpi_thread && !own_pus().empty()) Topology::host().bind_thread(own_pus());
  rounds.is_mpi_thread = true;
  rounds.start_over();
}

bool rest_of_mpi_thread() {
  if (!rounds.is_mpi_thread) return false;
  rounds.yields = true;
  for (const std::size_t rank : rounds.to_wake) wake(rank);
  rounds.to_wake.clear();
  // Each round polls for new messages; a second poll is for a transfer that has not ended.
  const bool transfer = rounds.vain_polls > 1;
  rounds.vain_polls = 0;
  if (polling.load(std::memory_order_relaxed) != Polling::eager && ++rounds.vain > eager_rounds)
    rest(transfer);
  return true;
}

bool open_mailboxes(const Mpi& mpi) {
  std::random_device random;
  const std::uint64_t number = mpi.share_value(std::uint64_t{random()} << 32U | random(), 0);
  const std::string name = fmt::format("/starpipe-{:016x}", number);
  const std::size_t bytes = index(mpi.ranks()) * sizeof(Mailbox);
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, S_IRUSR | S_IWUSR);
  void* memory = MAP_FAILED;
  if (file >= 0 && posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0)
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
  auto* const all = static_cast<Mailbox*>(memory);
  if (memory != MAP_FAILED) all[index(mpi.rank())].is_open = true;
  mpi.barrier();  // all ranks have opened it
  shm_unlink(name.c_str());
  if (memory == MAP_FAILED) return false;
  mailboxes = {all, index(mpi.ranks()), index(mpi.rank()), true};
  for (std::size_t r = 0; r < mailboxes.ranks; ++r)
    mailboxes.of_all_ranks = mailboxes.of_all_ranks && all[r].is_open;
  return true;
}

void close_mailboxes() {
  if (mailboxes.all != nullptr) munmap(mailboxes.all, mailboxes.ranks * sizeof(Mailbox));
  mailboxes = {};
}

void note_sent(int to) {
  if (mailboxes.all == nullptr || index(to) >= mailboxes.ranks) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // StarPU-MPI sends a datum in two messages. One call for both spares the other rank a round.
  if (rounds.is_mpi_thread && rounds.yields) {
    if (std::ranges::find(rounds.to_wake, index(to)) == rounds.to_wake.end())
      rounds.to_wake.push_back(index(to));
  } else {
    wake(index(to));
  }
}

void note_task_begin() {
  computing.fetch_add(1);
  mpi_sleep().end();
}

// Policies of StarPU's do not say that a worker is idle.
void note_task_end() {
  computing.fetch_sub(1);
  if (polling.load(std::memory_order_relaxed) == Polling::napping) mpi_sleep().end();
}

void note_result() { has_result = true; }

void note_idle_worker() {
  if (std::exchange(has_result, false) && mailboxes.all != nullptr) wake(mailboxes.own);
  mpi_sleep().end();
}

}  // namespace starpipe::runtime
