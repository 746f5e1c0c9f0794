// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>

#include "base/environment.hpp"

namespace starpipe::runtime {

/// The environment variables through which a session talks to StarPU, which has no function for these
/// settings. MPI's libraries start threads, and those may read the environment at any time. So the variables
/// exist before MPI starts and until it has ended, and a session overwrites values in place.
class StarpuSettings {
 public:
  /// Unless the user has set them, STARPU_SILENT, STARPU_MPI_STATS, STARPU_MPI_NOBIND and
  /// STARPU_CUDA_PIPELINE become 1, and STARPU_MPI_NDETACHED_SEND becomes 0. The variables below keep their
  /// values. Call it while no other thread uses the environment.
  StarpuSettings();

  /// Whether the user has not asked for StarPU-MPI's statistics.
  [[nodiscard]] bool hides_statistics() const { return hides_statistics_; }

  // Written by sessions.
  ReservedVariable policy{"STARPU_SCHED", "", 0};
  ReservedVariable streams{"STARPU_NWORKER_PER_CUDA", "1", 4};
  ReservedVariable no_binding{"STARPU_WORKERS_NOBIND", "", 1};
  ReservedVariable clean_buffers{"STARPU_MINIMUM_CLEAN_BUFFERS", "5", 1};  // StarPU's default

 private:
  bool hides_statistics_;
  std::list<ScopedVariable> constants_;
};

}  // namespace starpipe::runtime
