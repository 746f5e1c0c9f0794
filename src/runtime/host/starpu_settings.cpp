// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/mpi.hpp"

namespace starpipe::runtime {

std::shared_ptr<StarpuSettings> StarpuSettings::of_process() {
  static std::weak_ptr<StarpuSettings> used;
  std::shared_ptr<StarpuSettings> settings = used.lock();
  if (!settings) used = settings = std::make_shared<StarpuSettings>();
  return settings;
}

StarpuSettings::StarpuSettings() : hides_statistics_(!environment("STARPU_MPI_STATS")) {
  const auto unless_set = [this](const char* name, const char* value) {
    if (!environment(name)) constants_.emplace_back(name, value);
  };
  for (const char* name : {"STARPU_SILENT", "STARPU_MPI_STATS", "STARPU_MPI_NOBIND"}) unless_set(name, "1");
  // A GPU's worker takes a task only when the task before has ended. Policy and meter rely on it.
  unless_set("STARPU_CUDA_PIPELINE", "1");
  // No limit. By itself StarPU-MPI sends ten messages of a rank at a time, and links without traffic wait.
  unless_set("STARPU_MPI_NDETACHED_SEND", "0");
}

}  // namespace starpipe::runtime
