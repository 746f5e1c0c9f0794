// SPDX-License-Identifier: Apache-2.0
#include "runtime/ranks/starpu_settings.hpp"

namespace starpipe::runtime {

StarpuSettings::StarpuSettings() : hides_statistics_(!environment("STARPU_MPI_STATS")) {
  // STARPU_CUDA_PIPELINE: a GPU's worker takes a task only when the task before has ended. Policy and meter
  // rely on it.
  for (const char* name :
       {"STARPU_SILENT", "STARPU_MPI_STATS", "STARPU_MPI_NOBIND", "STARPU_CUDA_PIPELINE"}) {
    if (!environment(name)) constants_.emplace_back(name, "1");
  }
}

}  // namespace starpipe::runtime
