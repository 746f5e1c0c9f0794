// SPDX-License-Identifier: Apache-2.0
// A slow link, to be preloaded: a message from rank STARPIPE_TEST_SLOW_FROM to rank STARPIPE_TEST_SLOW_TO
// arrives STARPIPE_TEST_SLOW_MS milliseconds late. The receiver's MPI_Test says that the message is still
// under way.
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>

#include <mpi.h>

namespace {

using Clock = std::chrono::steady_clock;

int number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

class SlowLink {
 public:
  /// A message from rank `from` is awaited with `request`.
  void begin(MPI_Request request, int from) {
    if (from != from_ || own_rank() != to_) return;
    const std::scoped_lock lock(mutex_);
    arrived_[request] = std::nullopt;
  }
  /// True if the message of `request` has arrived and is still to be kept back.
  bool keeps_back(MPI_Request request) {
    const std::scoped_lock lock(mutex_);
    const auto found = arrived_.find(request);
    if (found == arrived_.end()) return false;
    int done = 0;
    if (!found->second && PMPI_Request_get_status(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
        done != 0)
      found->second = Clock::now();
    if (!found->second || Clock::now() < *found->second + delay_) return true;
    arrived_.erase(found);
    return false;
  }

 private:
  static int own_rank() {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
  }

  int from_ = number("STARPIPE_TEST_SLOW_FROM");
  int to_ = number("STARPIPE_TEST_SLOW_TO");
  std::chrono::milliseconds delay_{number("STARPIPE_TEST_SLOW_MS")};
  std::mutex mutex_;
  std::map<MPI_Request, std::optional<Clock::time_point>> arrived_;  // when, once it has
};

SlowLink& slow_link() {
  static SlowLink link;
  return link;
}

}  // namespace

extern "C" int MPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  if (slow_link().keeps_back(*request)) {
    *flag = 0;
    return MPI_SUCCESS;
  }
  return PMPI_Test(request, flag, status);
}

extern "C" int MPI_Irecv(void* buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  const int result = PMPI_Irecv(buffer, count, type, from, tag, comm, request);
  if (result == MPI_SUCCESS) slow_link().begin(*request, from);
  return result;
}
