// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/mpi.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include "base/environment.hpp"
#include "base/messages.hpp"
#include "base/numbers.hpp"
#include "runtime/host/lost_rank.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

// Under smaller limits MPICH ends the process with messages of its own. With UCX it makes files of 4.1 MiB in
// shared memory, even for one rank, and opens about 40 files for four ranks of a host. Both limits leave room
// for other versions.
constexpr rlim_t largest_file = rlim_t{8} << 20U;
constexpr rlim_t open_files = 64;

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

[[noreturn]] void refuse_threads() {
  throw std::runtime_error("this MPI does not provide MPI_THREAD_MULTIPLE");
}

}  // namespace

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

void wait_for(MPI_Request& request, void (*check)()) {
  using std::chrono::microseconds;
  constexpr int eager_polls = 30;
  const auto start = std::chrono::steady_clock::now();
  for (int done = 0, polls = 1; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0; ++polls) {
    if (polls < eager_polls) continue;
    if (check != nullptr) check();
    // A poll takes microseconds from whoever shares the core. So naps grow with the time waited, and add a
    // thirtieth to it at most.
    const auto waited = std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - start);
    std::this_thread::sleep_for(std::clamp(waited / 30, microseconds(50), microseconds(500)));
  }
}

StartedMpi::StartedMpi(const std::function<void(const std::string& line)>& on_late_start) {
  int runs = 0;
  MPI_Initialized(&runs);
  if (runs != 0) throw std::logic_error("MPI has started before: it starts once in a process");
  require_limits();
  require_launcher();
  int provided = 0;
  {
    const StartWatch watch(on_late_start);
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  }
  if (provided >= MPI_THREAD_MULTIPLE) return;
  MPI_Finalize();
  refuse_threads();
}

StartedMpi::~StartedMpi() { MPI_Finalize(); }

Mpi::Mpi(MPI_Comm comm, RunListener listener)
    : starpu_settings_(StarpuSettings::of_process()), listener_(std::move(listener)) {
  int runs = 0;
  int ended = 0;
  MPI_Initialized(&runs);
  MPI_Finalized(&ended);
  if (runs == 0 || ended != 0)
    throw std::logic_error("MPI does not run: call MPI_Init_thread first, or make an MpiLibrary");
  if (comm == MPI_COMM_NULL) throw std::logic_error("MPI_COMM_NULL has no ranks to run on");
  int provided = 0;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_MULTIPLE) refuse_threads();
  MPI_Comm_dup(comm, &comm_);
  MPI_Comm_dup(comm, &starpu_comm_);
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

void Mpi::gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all) const {
  const int size = gather_places(std::array{std::uint64_t{mine.size()}}).counts.front();
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgather(mine.data(), size, MPI_BYTE, all.data(), size, MPI_BYTE, comm_, &request);
  wait_for(request);
}

std::vector<std::string> Mpi::gather(const std::string& mine) const {
  const auto [sizes, starts, total] = gather_places(gather_values<std::uint64_t>(mine.size()));
  std::string all(total, '\0');
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallgatherv(mine.data(), sizes[index(rank_)], MPI_CHAR, all.data(), sizes.data(), starts.data(),
                  MPI_CHAR, comm_, &request);
  wait_for(request);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < sizes.size(); ++r)
    texts.push_back(all.substr(index(starts[r]), index(sizes[r])));
  return texts;
}

void Mpi::gather_on_root(std::span<const std::byte> mine, std::size_t record,
                         const std::function<std::span<std::byte>(std::size_t)>& room) const {
  // MPI counts in int: records, since bytes may be more.
  const auto [sizes, starts, total] = gather_places(gather_values<std::uint64_t>(mine.size() / record));
  const std::span<std::byte> all = rank_ == 0 ? room(total) : std::span<std::byte>();
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_contiguous(static_cast<int>(record), MPI_BYTE, &type);
  MPI_Type_commit(&type);
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Igatherv(mine.data(), sizes[index(rank_)], type, all.data(), sizes.data(), starts.data(), type, 0,
               comm_, &request);
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
  MPI_Abort(comm_, 1);
  std::abort();
}

}  // namespace starpipe::runtime
