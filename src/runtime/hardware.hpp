// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace starpipe::runtime {

/// The cores this process may use, by hwloc: its binding (mpiexec, srun, taskset) within the machine.
struct Hardware {
  int cores = 1;
  std::string binding;  ///< hwloc's list of processing units, "0-3"
  std::string machine;  ///< host name
  std::string cpu;      ///< the processor's name, when the machine tells it
};

Hardware find_hardware();

}  // namespace starpipe::runtime
