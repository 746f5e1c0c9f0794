// SPDX-License-Identifier: Apache-2.0
// StarPU's mutexes and condition variables on SimGrid. SimGrid's own give up the processor at each lock and
// unlock, so they took most of the time of a simulation. These give it up only to wait. All ranks run in one
// thread, as coroutines. A coroutine continues until it calls SimGrid. So this code, too, needs no lock of
// its own. The linker has StarPU call these functions in place of SimGrid's (--wrap, src/CMakeLists.txt).
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include <simgrid/cond.h>
#include <simgrid/mutex.h>
#include <simgrid/semaphore.h>

namespace starpipe::runtime {
namespace {

/// One coroutine's wait until another one wakes it. If it is woken before it waits, it does not wait.
class Turn {
 public:
  Turn() {
    if (unused().empty()) {
      semaphore_ = sg_sem_init(0);
    } else {
      semaphore_ = unused().back();
      unused().pop_back();
    }
  }
  ~Turn() { unused().push_back(semaphore_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void wait() { sg_sem_acquire(semaphore_); }
  /// Returns false if nobody woke this up in `seconds`.
  bool wait_for(double seconds) { return sg_sem_acquire_timeout(semaphore_, seconds) == 0; }
  void wake() { sg_sem_release(semaphore_); }

 private:
  // Semaphores of earlier turns; SimGrid's own memory ends with the process.
  static std::vector<sg_sem_t>& unused() {
    static std::vector<sg_sem_t> semaphores;
    return semaphores;
  }

  sg_sem_t semaphore_;
};

/// The coroutines that wait. The one that came first is woken first.
class Queue {
 public:
  /// `before`: what the caller does once it is in the queue.
  template <class Before>
  void wait(Before before) {
    Turn turn;
    turns_.push_back(&turn);
    before();
    turn.wait();
  }

  /// Returns false if nobody woke the caller up in `seconds`.
  template <class Before>
  bool wait_for(double seconds, Before before) {
    Turn turn;
    turns_.push_back(&turn);
    before();
    if (turn.wait_for(seconds)) return true;
    if (std::erase(turns_, &turn) > 0) return false;
    turn.wait();  // it was woken up at the very end
    return true;
  }

  /// Returns false if nobody waits.
  bool wake_one() {
    if (turns_.empty()) return false;
    Turn* const turn = turns_.front();
    turns_.pop_front();
    turn->wake();
    return true;
  }

  void wake_all() {
    for (Turn* const turn : std::exchange(turns_, {})) turn->wake();
  }

 private:
  std::deque<Turn*> turns_;
};

class Mutex {
 public:
  void lock() {
    if (!try_lock()) waiting_.wait([] {});
  }
  bool try_lock() { return !std::exchange(is_locked_, true); }
  // The next one that waits has the mutex then.
  void unlock() {
    if (!waiting_.wake_one()) is_locked_ = false;
  }

 private:
  bool is_locked_ = false;
  Queue waiting_;
};

Mutex& of(sg_mutex_t mutex) { return *reinterpret_cast<Mutex*>(mutex); }
Queue& of(sg_cond_t condition) { return *reinterpret_cast<Queue*>(condition); }

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
sg_mutex_t __wrap_sg_mutex_init() {
  return reinterpret_cast<sg_mutex_t>(std::make_unique<Mutex>().release());  // sg_mutex_destroy takes it
}
void __wrap_sg_mutex_lock(sg_mutex_t mutex) { of(mutex).lock(); }
void __wrap_sg_mutex_unlock(sg_mutex_t mutex) { of(mutex).unlock(); }
int __wrap_sg_mutex_try_lock(sg_mutex_t mutex) { return of(mutex).try_lock() ? 1 : 0; }
void __wrap_sg_mutex_destroy(const_sg_mutex_t mutex) {
  const std::unique_ptr<const Mutex> taken(reinterpret_cast<const Mutex*>(mutex));
}

sg_cond_t __wrap_sg_cond_init() {
  return reinterpret_cast<sg_cond_t>(std::make_unique<Queue>().release());  // sg_cond_destroy takes it
}
void __wrap_sg_cond_wait(sg_cond_t condition, sg_mutex_t mutex) {
  of(condition).wait([mutex] { of(mutex).unlock(); });
  of(mutex).lock();
}
int __wrap_sg_cond_wait_for(sg_cond_t condition, sg_mutex_t mutex, double seconds) {
  const bool woken = of(condition).wait_for(seconds, [mutex] { of(mutex).unlock(); });
  of(mutex).lock();
  return woken ? 0 : 1;
}
void __wrap_sg_cond_notify_one(sg_cond_t condition) { of(condition).wake_one(); }
void __wrap_sg_cond_notify_all(sg_cond_t condition) { of(condition).wake_all(); }
void __wrap_sg_cond_destroy(const_sg_cond_t condition) {
  const std::unique_ptr<const Queue> taken(reinterpret_cast<const Queue*>(condition));
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

}  // namespace starpipe::runtime
