// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <sys/types.h>

namespace starpipe::runtime {

/// Returns the rank that the launcher (hydra, Slurm, Open MPI's) gave this process, known before MPI starts;
/// nullopt without a launcher.
std::optional<int> launcher_rank();

/// Returns the launcher's process on this host (hydra's proxy, Slurm's step daemon, Open MPI's daemon or
/// launcher), which is an ancestor of this process; nullopt without one, or if it cannot be seen.
std::optional<pid_t> launcher_of_host();

/// True if this process is in a user namespace that its launcher is not in, as in a container for each rank.
bool has_own_user_namespace();

/// True if the launcher has another /dev/shm than this process, or cannot be seen: as in a container for each
/// rank.
bool has_own_shared_memory();

/// Returns the milliseconds that this process waits before it prints which signal ended it; 0 on rank 0 and
/// without a launcher. A signal to the whole run reaches every rank. Rank 0 prints the line and ends, and the
/// launcher ends the others within the pause.
int signal_line_pause_ms();

/// The exit code of a run that SIGTERM has ended after it wrote a checkpoint: EX_TEMPFAIL of <sysexits.h>,
/// "try again".
inline constexpr int status_of_stopped_run = 75;

/// Splits the process in two: a child that works, and a parent that only waits for it. When a rank dies, MPI
/// launchers kill the other ranks at once, and none of them can say what happened. The parent of the lost
/// rank can: it prints one line on standard error, and asks a launcher that would wait for the others (srun)
/// to end the job.
///
/// Ending signals (starpipe/base/signals.hpp) end the run within seconds, whether they reach the parent, the
/// child, both, or all ranks of a run: the child removes its temporary files, and one line names the signal.
/// Returns nullopt in the child. In the parent, returns when the child has ended: its exit status, or 128 +
/// the number of the signal that ended it. The child does not outlive its parent: it hears of the parent's
/// death by the signal SIGRTMAX - 1. Call it before MPI, StarPU or any thread is started. Throws
/// std::system_error when no process can be made.
std::optional<int> watch_over_rank();

/// For a child of `watch_over_rank` whose work has come to its end. Without this call its parent takes an
/// exit status of 0 for a failure: code of a plug-in or of a library has ended the process.
void note_end_of_work() noexcept;

/// True if this process is a child of `watch_over_rank`: its parent says by which signal it ended. A signal
/// handler may call it.
bool is_watched() noexcept;

/// Milliseconds between the line that says why a run ends and the request to the launcher to end the job. The
/// launcher reads the two from different descriptors, and might otherwise end the job before it has read the
/// line.
inline constexpr int abort_pause_ms = 500;

/// True if `end_job` ends other ranks, too: the launcher understands PMI-1.
bool can_end_job();

/// Ends this process, and by a request to the launcher all ranks of the job, with exit status `status`.
/// MPI_Abort does the same and prints a line of its own. Removes the files of RemovedOnSignal. The reason
/// must have been printed before. Any thread may call it.
[[noreturn]] void end_job(int status = 1);

/// For a rank that cannot start MPI, for which the other ranks would wait: prints one line on standard error
/// and ends the job. If every rank finds the same mistake, the lowest one prints and ends the others, since
/// each rank waits 1.5 seconds longer than the one before it, up to 15.
[[noreturn]] void end_before_mpi(const std::string& reason, int status);

/// For RunListener::abort in a program: prints one line on standard error, then ends the job without
/// MPI_Abort, which prints more, where the launcher permits it. `rank`, `ranks`: of MPI_COMM_WORLD.
void report_and_end_job(int rank, int ranks, const std::string& reason);

/// Does the same as `end_job`, with any exit status, for signal handlers. Ends the other ranks only in the
/// child of `watch_over_rank`; in other processes the launcher decides.
[[noreturn]] void end_watched_job(int status) noexcept;

/// Ends a run with `status_of_stopped_run` under hydra, which else gives status 0 when it has received a
/// signal itself, whatever its ranks give. Under other launchers, and without one, does nothing. Every rank
/// calls it before MPI ends, when all ranks have done their work.
void end_stopped_run();

/// For a process that has done its work but whose MPI does not end. When the program ends, it tells the
/// launcher that this rank has ended well, which MPI_Finalize would do, and ends the process at once with the
/// program's own exit status: the destructors of MPI's libraries would wait, or crash. `in_mpi`: the thread
/// that is still in MPI, by the kernel's number; 0: none.
void leave_mpi_at_exit(pid_t in_mpi);

/// Calls `late` on a thread of its own, unless it is destroyed within the limit.
class Deadline {
 public:
  Deadline(std::chrono::milliseconds limit, std::function<void()> late);

 private:
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last: it uses the other members
};

}  // namespace starpipe::runtime
