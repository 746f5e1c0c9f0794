// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <mpi.h>

namespace starpipe::runtime {

/// MPI_Init_thread and MPI_Finalize around a process's life, and a communicator of our own, so that our
/// messages never meet StarPU-MPI's.
class Mpi {
 public:
  /// Throws std::runtime_error when MPI gives no MPI_THREAD_MULTIPLE: StarPU-MPI's thread and ours both call
  /// it.
  Mpi();
  ~Mpi();
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  [[nodiscard]] MPI_Comm comm() const { return comm_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }

  /// Collective. A barrier that sleeps while it waits: MPI's own spins, and would take a core from a rank
  /// that still works.
  void barrier() const;

  /// Collective. What every rank says, by rank.
  [[nodiscard]] std::vector<std::string> gather(const std::string& mine) const;

  /// Ends the job on all ranks, after one line on standard error.
  [[noreturn]] void abort(const std::string& message) const;

  /// Collective. The message of the lowest rank that has one, or an empty string: so that all ranks stop
  /// together when one finds a mistake.
  [[nodiscard]] std::string first_problem(const std::string& mine) const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int ranks_ = 1;
};

}  // namespace starpipe::runtime
