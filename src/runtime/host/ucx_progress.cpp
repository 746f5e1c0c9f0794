// SPDX-License-Identifier: Apache-2.0
// In MPI_Finalize, MPICH up to 4.1 disconnects from all ranks through UCX, and then waits for the launcher's
// barrier without polling UCX. A rank that is still disconnecting needs answers from the ranks that wait
// there already, so over TCP most runs on several ranks would never end.
//
// So here are the functions of UCX that MPICH calls at its end, in place of UCX's own. Each calls the
// function that it replaces, under a lock once MPI_Finalize comes: a worker of UCX is for one thread at a
// time. The function that polls also notes whether it has found something.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "runtime/host/mpi.hpp"
#include "runtime/host/ucx.hpp"

namespace starpipe::runtime {
namespace {

struct Ucx {
  std::atomic<bool> ends = false;         // MPI_Finalize comes next or has begun
  std::atomic<bool> disconnects = false;  // MPI_Finalize has begun to disconnect
  std::recursive_mutex mutex;             // of UCX, once it ends; UCX's functions may call each other
  std::array<void*, 64> workers{};        // MPICH has one, or one for each of its channels
  std::uint64_t polls = 0;                // since it ends
  std::uint64_t polls_before = 0;         // at the last call of poll_ucx
};
Ucx ucx;

thread_local bool has_found = false;

std::unique_lock<std::recursive_mutex> lock_at_end() {
  return ucx.ends.load(std::memory_order_relaxed) ? std::unique_lock(ucx.mutex)
                                                  : std::unique_lock<std::recursive_mutex>();
}

}  // namespace
}  // namespace starpipe::runtime

// NOLINTBEGIN(readability-identifier-naming)
extern "C" {

// Its status is one byte, which `int` passes on.
int ucp_worker_create(void* context, const void* parameters, void** worker) {
  using starpipe::runtime::ucx;
  static auto* const create = starpipe::runtime::replaced(ucp_worker_create, "ucp_worker_create");
  const int status = create(context, parameters, worker);
  const std::scoped_lock lock(ucx.mutex);
  if ((status & 0xFF) == 0) *std::ranges::find(ucx.workers.begin(), ucx.workers.end() - 1, nullptr) = *worker;
  return status;
}

void ucp_worker_destroy(void* worker) {
  using starpipe::runtime::ucx;
  static auto* const destroy = starpipe::runtime::replaced(ucp_worker_destroy, "ucp_worker_destroy");
  const std::scoped_lock lock(ucx.mutex);
  std::ranges::replace(ucx.workers, worker, nullptr);
  destroy(worker);
}

unsigned ucp_worker_progress(void* worker) {
  using starpipe::runtime::ucx;
  static auto* const progress = starpipe::runtime::replaced(ucp_worker_progress, "ucp_worker_progress");
  const auto lock = starpipe::runtime::lock_at_end();
  if (lock) ++ucx.polls;
  const unsigned events = progress(worker);
  starpipe::runtime::has_found = starpipe::runtime::has_found || events != 0;
  return events;
}

void* ucp_disconnect_nb(void* endpoint) {
  using starpipe::runtime::ucx;
  static auto* const disconnect = starpipe::runtime::replaced(ucp_disconnect_nb, "ucp_disconnect_nb");
  const auto lock = starpipe::runtime::lock_at_end();
  if (lock) ucx.disconnects = true;
  return disconnect(endpoint);
}

void ucp_request_release(void* request) {
  static auto* const release = starpipe::runtime::replaced(ucp_request_release, "ucp_request_release");
  const auto lock = starpipe::runtime::lock_at_end();
  release(request);
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)

namespace starpipe::runtime {

bool found_by_ucx() { return std::exchange(has_found, false); }

void expect_end_of_ucx() { ucx.ends = true; }

void poll_ucx() {
  if (!ucx.disconnects.load()) return;
  const std::unique_lock lock(ucx.mutex, std::try_to_lock);
  if (!lock) return;
  if (ucx.polls == ucx.polls_before) {
    for (void* const worker : ucx.workers) {
      if (worker != nullptr) ucp_worker_progress(worker);
    }
  }
  ucx.polls_before = ucx.polls;  // our own included
}

}  // namespace starpipe::runtime
