// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <mpi.h>

#include "base/environment.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {

/// The folder in which StarPU keeps its measurements of this machine. StarPU aborts the process when it
/// cannot write there, and when it reads a file that an earlier abort or a full disk has left empty.
struct StarpuFolder {
  /// A folder that replaces the user's, as a value of XDG_CACHE_HOME; empty: the user's folder serves.
  std::filesystem::path own;
  std::string line;     ///< with `own`: one line for the user, with the reason and the remedy
  std::string problem;  ///< one line if no folder can be written
};

/// Finds the user's folder as StarPU does, makes it, and removes files about this host that are empty or end
/// within a line. A file that changed within the last two seconds may be in the making, and is waited for. If
/// the user's folder cannot be written, takes `starpipe-UID` in the folder for temporary files or in
/// /dev/shm.
StarpuFolder find_starpu_folder();

/// Returns the part of a cache folder in which StarPU keeps its measurements.
std::filesystem::path sampling_folder(const std::filesystem::path& cache);

/// The environment variables through which a session talks to StarPU, which has no function for these
/// settings. MPI's libraries start threads, and those may read the environment at any time. So the variables
/// exist before MPI starts and until it has ended, and a session overwrites values in place.
class StarpuSettings {
 public:
  /// Unless the user has set them, STARPU_SILENT, STARPU_MPI_STATS, STARPU_MPI_NOBIND and
  /// STARPU_CUDA_PIPELINE become 1, and STARPU_MPI_NDETACHED_SEND becomes 0. If StarPU cannot use the user's
  /// folder, STARPU_PERF_MODEL_DIR and XDG_CACHE_HOME name another one. The variables below keep their
  /// values. Call it while no other thread uses the environment.
  StarpuSettings();

  /// Returns the settings of this process: those that are in use, or new ones. The last user removes them
  /// from the environment.
  static std::shared_ptr<StarpuSettings> of_process();

  /// True unless the user has asked for StarPU-MPI's statistics.
  [[nodiscard]] bool hides_statistics() const { return hides_statistics_; }

  /// Its line is for the first session.
  StarpuFolder folder = find_starpu_folder();

  // Written by sessions.
  ReservedVariable policy{"STARPU_SCHED", "", 0};
  ReservedVariable streams{"STARPU_NWORKER_PER_CUDA", "1", 4};
  ReservedVariable no_binding{"STARPU_WORKERS_NOBIND", "", 1};
  ReservedVariable clean_buffers{"STARPU_MINIMUM_CLEAN_BUFFERS", "5", 1};  // StarPU's default

 private:
  bool hides_statistics_;
  std::list<ScopedVariable> constants_;
};

/// Waits for a nonblocking call, for a few microseconds in a loop and then with naps. MPI's own waits always
/// loop: where ranks share a core, that takes it from the rank which the call waits for. `check`: called
/// again and again while the wait lasts. Returns false if the call has not completed within `max`.
bool wait_for(MPI_Request& request, void (*check)() = nullptr,
              std::chrono::microseconds max = std::chrono::microseconds::max());

// Progress of UCX, MPICH's transport, while MPI_Finalize makes none (ucx_progress.cpp).

/// Call it just before MPI_Finalize, while no other thread calls MPI.
void expect_end_of_ucx();
/// Polls UCX if MPI_Finalize has begun to disconnect and has not polled since the last call. Call it again
/// and again, on one thread, while another is in MPI_Finalize. It never waits. It does nothing under an MPI
/// without UCX, or where UCX's functions are not replaced by ours: in programs that load MPI by dlopen.
void poll_ucx();

// The two functions below know the transport of messages (ucx_endpoints.cpp) where `poll_ucx` has an effect.

/// Returns the transports of messages from this rank to others: "TCP (eth0)"; "" where they are not known.
std::string transports();
/// True if some messages of this rank are known to cross TCP.
bool sends_over_tcp();

/// Collective. Returns a duplicate of the communicator. Unlike MPI_Comm_dup it waits as `wait_for` does.
MPI_Comm duplicate(MPI_Comm comm);

/// True if this process has called MPI_Init, also after the end of MPI.
bool mpi_has_started();

/// How long the end of MPI waits in a rank.
struct EndLimits {
  std::chrono::milliseconds others = std::chrono::hours(1);       ///< for ranks that still work
  std::chrono::milliseconds finalize = std::chrono::seconds(30);  ///< for MPI_Finalize after that
};

/// MPI in this process, from MPI_Init_thread to MPI_Finalize. The environment has StarPU's settings for the
/// same time. Start and end it while no other thread of the program uses the environment.
class StartedMpi {
 public:
  /// Throws InputError when the shell's limits on the size or number of files, or on stacks, are too small,
  /// and std::runtime_error when MPI does not provide MPI_THREAD_MULTIPLE: StarPU-MPI's thread and ours both
  /// call MPI. Calls `on_late` with a line, and ends the job, when other ranks do not start MPI
  /// (`StartWatch`).
  explicit StartedMpi(std::function<void(const std::string& line)> on_late = {}, EndLimits limits = {});
  /// Waits for all ranks, then ends MPI. If that takes longer than the limits, calls `on_late` with a line on
  /// rank 0 and leaves MPI as it is: see `leave_mpi_at_exit`.
  ~StartedMpi();
  StartedMpi(const StartedMpi&) = delete;
  StartedMpi& operator=(const StartedMpi&) = delete;

 private:
  // Made before MPI starts its threads, destroyed when they have ended.
  std::shared_ptr<StarpuSettings> starpu_settings_ = StarpuSettings::of_process();
  std::function<void(const std::string& line)> on_late_;
  EndLimits limits_;
  MPI_Comm world_ = MPI_COMM_NULL;  // a duplicate
};

/// Functions that a run calls to inform the program that it runs in. Functions that are not set are not
/// called.
struct RunListener {
  /// Called on rank 0 with one line about the run, by the thread that runs it.
  std::function<void(const std::string& line)> message = {};
  /// Called on rank 0 with a few words when a long part of the work begins, by the same thread.
  std::function<void(const std::string& words)> progress = {};
  /// Called with the reason, by any thread, when this rank finds a fault that the others cannot learn of.
  /// When it returns, MPI_Abort ends the ranks of the communicator. Unset: one line on standard error.
  std::function<void(const std::string& reason)> abort = {};
};

/// MPI counts and places items in int.
inline constexpr std::uint64_t max_gathered = std::numeric_limits<int>::max();

/// The places of the ranks' items in the array that gathers them, by rank.
struct GatherPlaces {
  std::vector<int> counts = {};
  std::vector<int> starts = {};
  std::uint64_t total = 0;
};

/// Returns the places for these numbers of items. Throws std::length_error if they are more than
/// `max_gathered` in total; all ranks that pass the same counts throw.
GatherPlaces gather_places(std::span<const std::uint64_t> counts);

/// How `Mpi::combine` makes one number of many. `bits`: each bit that some rank has set.
enum class Combine : std::uint8_t { min, max, sum, bits };

/// The ranks of a run: a communicator of our own, so that our messages never meet others, and one for
/// StarPU-MPI.
class Mpi {
 public:
  /// Collective. Duplicates the communicator twice. MPI has been started. Throws std::logic_error when it has
  /// not, std::runtime_error when it does not provide MPI_THREAD_MULTIPLE, and InputError when a launcher has
  /// started several processes that MPI has not joined.
  explicit Mpi(MPI_Comm comm = MPI_COMM_WORLD, RunListener listener = {});
  /// Collective.
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  [[nodiscard]] MPI_Comm comm() const { return comm_; }
  /// Returns the same ranks, for StarPU-MPI alone.
  [[nodiscard]] MPI_Comm starpu_comm() const { return starpu_comm_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  /// For the session. There is one session at a time.
  [[nodiscard]] StarpuSettings& starpu_settings() const { return *starpu_settings_; }

  /// Collective. Returns when all ranks have called it. Waits as `wait_for` does.
  void barrier() const;

  /// Collective. Returns the texts of all ranks, by rank, on every rank. What it returns grows with the
  /// number of ranks: where one number, one rank's value or rank 0's list will do, call a function below.
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine) const;

  /// Collective. Returns the numbers of all ranks combined to one, on every rank.
  [[nodiscard]] std::uint64_t combine(std::uint64_t mine, Combine how) const;

  /// Collective. Returns rank `from`'s text on every rank.
  [[nodiscard]] std::string share(const std::string& mine, int from = 0) const;

  /// Collective. Returns rank `from`'s value on every rank. `Value` is plain data.
  template <class Value>
  [[nodiscard]] Value share_value(Value mine, int from) const {
    static_assert(std::is_trivially_copyable_v<Value>);
    share_bytes(std::as_writable_bytes(std::span(&mine, 1)), from);
    return mine;
  }

  /// Returns the memory for the records of all ranks together. `counts`: the number of each rank's records.
  using RoomForRecords = std::function<std::span<std::byte>(std::span<const std::uint64_t> counts)>;
  /// Collective. Copies the records of all ranks, by rank, to rank 0. `record`: bytes of each. `room`: called
  /// on rank 0.
  void gather_on_root(std::span<const std::byte> mine, std::size_t record, const RoomForRecords& room) const;

  /// Collective. Returns true if all ranks give the same number.
  [[nodiscard]] bool all_equal(std::uint64_t mine) const;

  /// Tells the program one line; only rank 0 does.
  void say(const std::string& line) const {
    if (rank_ == 0 && listener_.message) listener_.message(line);
  }

  /// Tells the program in a few words what the run does now; only rank 0 does.
  void show(const std::string& words) const {
    if (rank_ == 0 && listener_.progress) listener_.progress(words);
  }

  /// Ends all ranks of the communicator, see RunListener::abort. Any thread may call it.
  [[noreturn]] void abort(const std::string& message) const;

  /// Collective. Returns the message of the lowest rank whose `mine` is not empty, or an empty string if all
  /// are. So all ranks stop together when one of them finds a mistake. Of several messages, the one with the
  /// smallest `place` (at least 0) counts.
  [[nodiscard]] std::string first_problem(const std::string& mine, int place = 0) const;

 private:
  // Overwrites the bytes with the bytes of rank `from`, which has as many.
  void share_bytes(std::span<std::byte> bytes, int from) const;

  std::shared_ptr<StarpuSettings> starpu_settings_;  // none on SimGrid, whose ranks share an environment
  RunListener listener_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm starpu_comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace starpipe::runtime
