// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

/// Ends the job with one line of ours when MPI fails, and not with MPI's own lines on the first rank that
/// notices. Over TCP a rank that dies closes its connections, so MPI fails on its neighbours before the dead
/// rank's parent process has named it. The line comes after a pause, in which the parent does so and ends the
/// job. There is one object at a time. It acts for the communicators of `mpi`, and for duplicates that are
/// made of them meanwhile.
class MpiErrors {
 public:
  explicit MpiErrors(const Mpi& mpi);
  ~MpiErrors();
  MpiErrors(const MpiErrors&) = delete;
  MpiErrors& operator=(const MpiErrors&) = delete;

 private:
  const Mpi& mpi_;
  MPI_Errhandler handler_ = MPI_ERRHANDLER_NULL;
};

}  // namespace starpipe::runtime
