// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/mpi_errors.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>

#include <fmt/format.h>

#include "base/signals.hpp"

namespace starpipe::runtime {
namespace {

std::atomic<const Mpi*> watched = nullptr;

// Returns the last line of MPI's text, which names the cause. MPICH puts the functions that failed before it.
std::string cause_of(int error) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(error, text.data(), &length);
  const std::string lines(text.data(), static_cast<std::size_t>(length));
  const std::size_t end = lines.find_last_not_of('\n');
  if (end == std::string::npos) return fmt::format("error {}", error);
  const std::size_t before = lines.find_last_of('\n', end);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return lines.substr(begin, end + 1 - begin);
}

// Any thread that calls MPI may come here. MPI wants a variadic function.
void end_run(MPI_Comm* comm, int* error, ...) {
  const Mpi* const mpi = watched;
  if (mpi == nullptr) MPI_Abort(*comm, 1);
  // The parent of a rank that was killed speaks after half a second. Then the ranks take turns, so that one
  // does.
  sleep_through_signals(std::chrono::milliseconds(1500 + 300 * std::min(mpi->rank(), 10)));
  mpi->abort(fmt::format("MPI has failed, as it does when another rank is lost: {}", cause_of(*error)));
}

}  // namespace

MpiErrors::MpiErrors(const Mpi& mpi) : mpi_(mpi) {
  watched = &mpi;
  MPI_Comm_create_errhandler(end_run, &handler_);
  MPI_Comm_set_errhandler(mpi_.comm(), handler_);
  MPI_Comm_set_errhandler(mpi_.starpu_comm(), handler_);
}

MpiErrors::~MpiErrors() {
  watched = nullptr;
  MPI_Comm_set_errhandler(mpi_.comm(), MPI_ERRORS_ARE_FATAL);
  MPI_Comm_set_errhandler(mpi_.starpu_comm(), MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&handler_);
}

}  // namespace starpipe::runtime
