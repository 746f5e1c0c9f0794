// SPDX-License-Identifier: Apache-2.0
// How StarPU-MPI's thread shares cores with workers. It polls in a loop as long as it expects a message, and
// holds a lock while it polls. A worker needs this lock when it has computed a result that another rank
// reads. In each round the thread gives up the lock for a moment, and the StarPU that scripts/setup builds
// yields there. Only there does the thread sleep: it would otherwise make workers wait for the lock.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// The thread's behaviour between two rounds that found nothing, while some core of the rank is idle.
enum class Polling : std::uint8_t {
  eager,     ///< it begins the next round at once, always: it has a core of its own
  yielding,  ///< it yields, and after many rounds sleeps 20 microseconds: only workers of this rank want its
             ///< core
  napping,   ///< it sleeps, at first 50 microseconds and after a long wait 500: workers of other ranks want
             ///< its core, or idle workers that spin, as under StarPU's policies
  called,    ///< it sleeps until another rank of this host sends it a message, or a worker of this rank has
             ///< ended its task: many ranks share a core
};

/// Collective. Makes the memory by which ranks of a host wake each other's thread (`called`). Returns false
/// if this rank has none: sends then wake no thread. Call it while StarPU-MPI does not run.
bool open_mailboxes(const Mpi& mpi);
void close_mailboxes();

/// Sets the way of polling for this process, which has `cores` cores. While this many tasks compute, no core
/// is free to use a message. So a thread that is not eager then sleeps until a task begins or a worker has no
/// task: 5 milliseconds at most, or 2 while a transfer is under way. `pus`: if it is not empty, StarPU-MPI's
/// thread runs on these PUs from its first transfer on. Call it while StarPU-MPI does not run. It has an
/// effect in programs that call the functions below, as starpipe does (cli/mpi_calls.cpp); in others
/// StarPU-MPI polls eagerly.
void poll_mpi(Polling polling, int cores = 1, const std::string& pus = {});

/// Call it after polling a request. `done`: the request was complete. With a StarPU that does not
/// yield in its loop, a thread that is not eager yields and sleeps here, with the lock.
void note_poll(bool done);

/// Call it on StarPU-MPI's thread when it starts a transfer.
void note_transfer();

/// Call it when a message has been sent to rank `to` of the run.
void note_sent(int to);

/// Call it instead of yielding. Returns true if the calling thread is StarPU-MPI's: it has then waited as the
/// chosen way of polling requires. Other threads should yield.
bool rest_of_mpi_thread();

/// Call them on a worker's thread when it begins and ends a task that computes on its core.
void note_task_begin();
void note_task_end();

/// Call it on a worker's thread when a task has ended: other ranks may wait for what it has made.
void note_result();

/// Call it on a worker's thread when it has no task to run, or begins an emulated job, which only waits. If a
/// task of this worker has ended since the last call, it wakes StarPU-MPI's thread.
void note_idle_worker();

}  // namespace starpipe::runtime
