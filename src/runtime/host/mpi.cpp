// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/mpi.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/lost_rank.hpp"
#include "runtime/host/start_watch.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Under smaller limits MPICH ends the process with messages of its own. With UCX it makes files of 4.1 MiB in
// shared memory, even for one rank, and opens about 40 files for four ranks of a host. Both limits leave room
// for other versions.
constexpr rlim_t largest_file = rlim_t{8} << 20U;
constexpr rlim_t open_files = 64;

// A stack of 192 KiB overflows in StarPU.
constexpr rlim_t stack = rlim_t{512} << 10U;

void require_limits() {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  require_input(limit.rlim_cur >= largest_file, "ulimit -f",
                fmt::format("a file may have at most {}, but MPI needs files of up to {} in shared memory",
                            bytes_text(limit.rlim_cur), bytes_text(largest_file)));
  getrlimit(RLIMIT_NOFILE, &limit);
  require_input(
      limit.rlim_cur >= open_files, "ulimit -n",
      fmt::format("a process may open at most {} files, but MPI needs {}", limit.rlim_cur, open_files));
  getrlimit(RLIMIT_STACK, &limit);
  require_input(limit.rlim_cur >= stack, "ulimit -s",
                fmt::format("a stack may have at most {}, but the threads of StarPU and MPI need {}",
                            bytes_text(limit.rlim_cur), bytes_text(stack)));
  constexpr int threads = 3;  // of UCX, StartWatch, and of the watch for lost ranks
  constexpr std::uint64_t bytes = std::uint64_t{64} << 20U;
  require_free_memory(bytes, "MPI");
  require_free_addresses(threads, "MPI and its threads");
  if (const std::string problem = problem_of_threads(threads); !problem.empty()) throw InputError(problem);
}

// UCX takes 4.2 MiB of /dev/shm for each rank, even for one. Containers may have less, and UCX and MPICH
// would end the process with messages of their own.
void require_shared_memory() {
  constexpr std::uint64_t bytes_of_rank = std::uint64_t{17} << 18U;
  struct statvfs shared {};
  if (dlsym(RTLD_DEFAULT, "ucp_init_version") == nullptr || environment("UCX_TLS") ||
      environment("UCX_POSIX_DIR") || statvfs("/dev/shm", &shared) != 0 || shared.f_blocks == 0)
    return;
  const auto ranks = static_cast<std::uint64_t>(environment_number("MPI_LOCALNRANKS").value_or(1));
  // Other ranks may have taken their parts already.
  const std::uint64_t room = shared.f_frsize * (ranks == 1 ? shared.f_bavail : shared.f_blocks);
  require_input(
      (shared.f_flag & ST_RDONLY) == 0 && room >= ranks * bytes_of_rank, "/dev/shm",
      fmt::format("{}, but MPI needs {} there for each rank; make it larger (docker run --shm-size), or "
                  "set UCX_TLS=tcp,self",
                  (shared.f_flag & ST_RDONLY) != 0 ? "cannot be written" : "has " + bytes_text(room),
                  bytes_text(bytes_of_rank)));
}

// Returns the number of ranks on this host: hydra's, or Slurm's as in "2", "2(x3),1".
int ranks_of_host() {
  return std::max(1, std::atoi(environment("MPI_LOCALNRANKS")
                                   .value_or(environment("SLURM_STEP_TASKS_PER_NODE").value_or("1"))
                                   .c_str()));
}

// While MPICH starts, ranks of a host wait for each other without giving up their cores. Its setting for
// ranks that share no memory leaves these waits out. (UCX, which carries the messages, shares memory still.)
// Ranks with different settings would not find each other, so only what all ranks see alike decides: whether
// all are on one host, and its cores, on however few of them a rank may run.
void start_without_waits() {
  const std::optional<int> here = environment_number("MPI_LOCALNRANKS");
  if (!here || here != environment_number("PMI_SIZE")) return;
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  if (patience_for(2 * *here, cores) > 1) setenv("MPIR_CVAR_NOLOCAL", "1", /*overwrite=*/0);
}

// The setting that ucx_endpoints.cpp relies on.
void send_eagerly_over_tcp() { setenv("UCX_RNDV_SEND_NBR_THRESH", "inf", /*overwrite=*/0); }

// A user's threshold brings back the rendezvous, under which the directions of TCP take turns.
void warn_of_rendezvous(const std::function<void(const std::string& line)>& say) {
  if (!say || launcher_rank() != 0 || !sends_over_tcp()) return;
  const char* name = "UCX_RNDV_THRESH";
  std::string value = environment(name).value_or("auto");
  if (value == "auto") {
    name = "UCX_RNDV_SEND_NBR_THRESH";
    value = environment(name).value_or("inf");
  }
  if (value.find("inf") != std::string::npos) return;
  say(
      fmt::format("{}={}: of larger messages, TCP carries one direction of a pair of ranks at a time, so a "
                  "step may take up to twice as long; unset it, or set inf",
                  name, value));
}

// A program that a rank starts inherits the launcher's variables, but not always its socket: Python's
// subprocess closes it. MPICH would end the process with messages of its own.
void require_launcher() {
  const std::optional<int> socket = environment_number("PMI_FD");
  require_input(
      !socket || fcntl(*socket, F_GETFD) != -1, "PMI_FD",
      fmt::format("{} is not an open file: starpipe was not started by the launcher that set it; unset "
                  "PMI_FD, PMI_RANK and PMI_SIZE",
                  socket.value_or(-1)));
}

// A launcher that does not know this MPI starts processes that MPI does not join. Each would be the only rank
// of a run of its own, and all of these runs would write the same files.
void require_joined() {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (ranks > 1) return;
  // The variables of mpiexec, of the launchers of Open MPI and MVAPICH, of torchrun, DeepSpeed, Horovod,
  // jsrun, Flux and srun.
  // The first one that is set is the innermost launcher's, since each may run within those after it.
  for (const char* name :
       {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "ROLE_WORLD_SIZE", "WORLD_SIZE",
        "HOROVOD_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    // Shells may have this one, without the second.
    if (std::string_view(name) == "WORLD_SIZE" && !environment("LOCAL_RANK")) continue;
    const std::optional<int> started = environment_number(name);
    if (!started) continue;
    require_input(
        *started <= 1, name,
        fmt::format("a launcher has started {} processes, but MPI does not join them: each would be "
                    "a run of its own; use the launcher of this MPI (mpiexec, or srun --mpi=pmi2), "
                    "or unset the variable for runs of one rank each",
                    *started));
    return;
  }
}

// MPICH ends the process when it finds that ranks of a host cannot share memory, with messages that name no
// remedy. UCX sees hosts only, so it takes them for neighbours.
void warn_of_strangers(const std::function<void(const std::string& line)>& say) {
  if (!say || launcher_rank() != 0 || ranks_of_host() < 2) return;
  if (has_ranks_of_other_users()) {
    say("ranks of a host run as different users, who share no memory, so MPI may not start: run all ranks as "
        "one user");
  } else if (!environment("UCX_TLS") && has_own_user_namespace()) {
    say("ranks of a host are in user namespaces (containers) of their own, where MPI may find no shared "
        "memory and not start; UCX_TLS=tcp,self makes MPICH work without it");
  } else if (!environment("MPIR_CVAR_NOLOCAL") && has_own_shared_memory()) {
    say("ranks of a host have a /dev/shm of their own each (containers), where MPI may find no shared "
        "memory and not start; MPIR_CVAR_NOLOCAL=1 makes MPICH work without it");
  }
}

// Calls MPI_Finalize on a thread of its own, and polls UCX meanwhile. Returns the thread, by the kernel's
// number, if it is still in MPI_Finalize after `limit`; otherwise 0.
pid_t finalize_within(std::chrono::milliseconds limit) {
  struct End {
    std::mutex mutex;
    std::condition_variable reached;
    bool is_reached = false;
    std::atomic<pid_t> thread = 0;
  };
  const auto end = std::make_shared<End>();
  expect_end_of_ucx();
  std::thread thread([end] {
    end->thread = gettid();
    MPI_Finalize();
    const std::scoped_lock lock(end->mutex);
    end->is_reached = true;
    end->reached.notify_one();
  });
  const auto until = std::chrono::steady_clock::now() + limit;
  std::unique_lock lock(end->mutex);
  while (!end->reached.wait_for(lock, std::chrono::milliseconds(2), [&] { return end->is_reached; })) {
    poll_ucx();
    if (std::chrono::steady_clock::now() < until) continue;
    thread.detach();
    return end->thread;
  }
  lock.unlock();
  thread.join();
  return 0;
}

[[noreturn]] void refuse_threads() {
  throw std::runtime_error("this MPI does not provide MPI_THREAD_MULTIPLE");
}

}  // namespace

bool mpi_has_started() {
  int started = 0;
  MPI_Initialized(&started);
  return started != 0;
}

GatherPlaces gather_places(std::span<const std::uint64_t> counts) {
  std::uint64_t total = 0;
  GatherPlaces places;
  for (const std::uint64_t count : counts) {
    if (count > max_gathered - total)
      throw std::length_error(fmt::format("more than {} items of all ranks to gather", max_gathered));
    places.counts.push_back(static_cast<int>(count));
    places.starts.push_back(static_cast<int>(total));
    total += count;
  }
  places.total = total;
  return places;
}

MPI_Comm duplicate(MPI_Comm comm) {
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Comm_idup(comm, &made, &request);
  wait_for(request);
  return made;
}

bool wait_for(MPI_Request& request, void (*check)(), std::chrono::microseconds max) {
  using std::chrono::microseconds;
  constexpr int eager_polls = 30;
  const auto start = std::chrono::steady_clock::now();
  for (int done = 0, polls = 1; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0; ++polls) {
    if (polls < eager_polls) continue;
    if (check != nullptr) check();
    // A poll takes microseconds from whoever shares the core. So naps grow with the time waited, and add a
    // thirtieth to it at most. Calls go through several ranks in turn, so where many share few cores, a
    // longer nap would cost more time than it saves.
    const auto waited = std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - start);
    if (waited > max) return false;
    const microseconds longest = std::max(microseconds(500), patience.load() * microseconds(125));
    std::this_thread::sleep_for(std::clamp(waited / 30, microseconds(50), longest));
  }
  return true;
}

StartedMpi::StartedMpi(std::function<void(const std::string& line)> on_late, EndLimits limits)
    : on_late_(std::move(on_late)), limits_(limits) {
  if (mpi_has_started()) throw std::logic_error("MPI has started before: it starts once in a process");
  require_limits();
  require_shared_memory();
  require_launcher();
  patience = patience_for(2 * ranks_of_host(), static_cast<int>(std::thread::hardware_concurrency()));
  start_without_waits();
  send_eagerly_over_tcp();
  warn_of_strangers(on_late_);
  int provided = 0;
  {
    const StartWatch watch(on_late_);
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    refuse_threads();
  }
  if (const std::optional<int> other = rank_with_other_variables()) {
    if (on_late_)
      on_late_(
          fmt::format("rank {} has other variables MPIR_CVAR_* than another rank, so MPI may wait "
                      "indefinitely: give all ranks the same",
                      *other));
    std::this_thread::sleep_for(std::chrono::milliseconds(abort_pause_ms));
    end_job(2);
  }
  warn_of_rendezvous(on_late_);
  world_ = duplicate(MPI_COMM_WORLD);
}

StartedMpi::~StartedMpi() {
  int rank = 0;
  MPI_Comm_rank(world_, &rank);
  const auto leave = [&](std::string_view reason, std::chrono::milliseconds limit, pid_t in_mpi) {
    if (rank == 0 && on_late_)
      on_late_(fmt::format("MPI is left behind: {} within {:g} s", reason,
                           std::chrono::duration<double>(limit).count()));
    leave_mpi_at_exit(in_mpi);
    // MPI's threads may still read the environment, so it keeps its variables.
    [[maybe_unused]] static const auto kept = std::move(starpu_settings_);
  };
  MPI_Request all_end = MPI_REQUEST_NULL;
  MPI_Ibarrier(world_, &all_end);
  if (!wait_for(all_end, nullptr, limits_.others)) {
    leave("not all ranks have ended", limits_.others, 0);
    return;
  }
  MPI_Comm_free(&world_);
  if (const pid_t thread = finalize_within(limits_.finalize))
    leave("MPI_Finalize has not returned", limits_.finalize, thread);
}

Mpi::Mpi(MPI_Comm comm, RunListener listener)
    : starpu_settings_(StarpuSettings::of_process()), listener_(std::move(listener)) {
  int ended = 0;
  MPI_Finalized(&ended);
  if (!mpi_has_started() || ended != 0)
    throw std::logic_error("MPI does not run: call MPI_Init_thread first, or make an MpiLibrary");
  require_joined();
  if (comm == MPI_COMM_NULL) throw std::logic_error("MPI_COMM_NULL has no ranks to run on");
  int provided = 0;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_MULTIPLE) refuse_threads();
  comm_ = duplicate(comm);
  starpu_comm_ = duplicate(comm);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &ranks_);
}

Mpi::~Mpi() {
  MPI_Comm_free(&starpu_comm_);
  MPI_Comm_free(&comm_);
}

void Mpi::barrier() const {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(comm_, &request);
  wait_for(request);
}

std::uint64_t Mpi::combine(std::uint64_t mine, Combine how) const {
  const std::array operations = {MPI_MIN, MPI_MAX, MPI_SUM, MPI_BOR};  // in the order of Combine
  // MPICH 4.0 compares unsigned numbers as signed ones. With the upper bit changed these have the same order.
  const bool compares = how == Combine::min || how == Combine::max;
  const std::uint64_t changed = compares ? std::uint64_t{1} << 63U : 0;
  const auto own = static_cast<std::int64_t>(mine ^ changed);
  std::int64_t all = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(&own, &all, 1, MPI_INT64_T, operations[index(how)], comm_, &request);
  wait_for(request);
  return static_cast<std::uint64_t>(all) ^ changed;
}

// The larger x is, the smaller is ~x. So one call finds the maximum of x, and its minimum from that of ~x.
bool Mpi::all_equal(std::uint64_t mine) const {
  const auto own = static_cast<std::int64_t>(mine);
  const std::array both = {own, ~own};
  std::array<std::int64_t, 2> most{};
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(both.data(), most.data(), 2, MPI_INT64_T, MPI_MAX, comm_, &request);
  wait_for(request);
  return most[0] == ~most[1];
}

void Mpi::share_bytes(std::span<std::byte> bytes, int from) const {
  const int size = gather_places(std::array{std::uint64_t{bytes.size()}}).counts.front();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibcast(bytes.data(), size, MPI_BYTE, from, comm_, &request);
  wait_for(request);
}

std::string Mpi::share(const std::string& mine, int from) const {
  std::string text(share_value(mine.size(), from), '\0');
  if (rank_ == from) text = mine;
  if (!text.empty()) share_bytes(std::as_writable_bytes(std::span(text)), from);
  return text;
}

std::vector<std::string> Mpi::gather(const std::string& mine) const {
  const std::uint64_t size = mine.size();
  std::vector<std::uint64_t> all_sizes(index(ranks_));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(&size, 1, MPI_UINT64_T, all_sizes.data(), 1, MPI_UINT64_T, comm_, &request);
  wait_for(request);
  const auto [sizes, starts, total] = gather_places(all_sizes);
  std::string all(total, '\0');
  MPI_Iallgatherv(mine.data(), sizes[index(rank_)], MPI_CHAR, all.data(), sizes.data(), starts.data(),
                  MPI_CHAR, comm_, &request);
  wait_for(request);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < sizes.size(); ++r)
    texts.push_back(all.substr(index(starts[r]), index(sizes[r])));
  return texts;
}

void Mpi::gather_on_root(std::span<const std::byte> mine, std::size_t record,
                         const RoomForRecords& room) const {
  // MPI counts in int: records, since bytes may be more.
  const std::uint64_t count = mine.size() / record;
  static_cast<void>(gather_places(std::array{combine(count, Combine::sum)}));  // all ranks throw together
  std::vector<std::uint64_t> counts(rank_ == 0 ? index(ranks_) : 0);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Igather(&count, 1, MPI_UINT64_T, counts.data(), 1, MPI_UINT64_T, 0, comm_, &request);
  wait_for(request);
  const GatherPlaces places = gather_places(counts);
  const std::span<std::byte> all = rank_ == 0 ? room(counts) : std::span<std::byte>();
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(static_cast<int>(record), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  MPI_Igatherv(mine.data(), static_cast<int>(count), type, all.data(), places.counts.data(),
               places.starts.data(), type, 0, comm_, &request);
  wait_for(request);
  MPI_Type_free(&type);
}

void Mpi::abort(const std::string& message) const {
  // Several threads may find the run lost: the first one tells it and ends the job.
  static std::atomic_flag ends;
  while (ends.test_and_set()) std::this_thread::sleep_for(std::chrono::seconds(1));
  if (listener_.abort)
    listener_.abort(message);
  else
    print_message(fmt::format("starpipe: rank {}: {}\n", rank_, message));
  // MPICH with UCX waits in MPI_Abort for ranks that make no progress. srun does not end the others when one
  // exits, so the launcher is asked to.
  try {
    const Deadline late(std::chrono::seconds(1), [] { end_job(); });
    MPI_Abort(comm_, 1);
  } catch (const std::system_error&) {  // no thread can start any more
    end_job();
  }
  std::abort();
}

}  // namespace starpipe::runtime
