// SPDX-License-Identifier: Apache-2.0
#include "runtime/host/hardware.hpp"

#include <algorithm>
#include <array>
#include <fstream>

#include <cblas.h>
#include <unistd.h>

#include "base/environment.hpp"

namespace starpipe::runtime {

Hardware find_hardware() {
  const Topology& topology = Topology::host();
  Hardware hardware{
      .machine = {}, .host = {}, .cpu = topology.processor(), .cores = 1, .binding = topology.binding()};
  hardware.cores = std::max(1, topology.cores(hardware.binding));
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) hardware.host = name.data();
  hardware.machine = environment("SLURMD_NODENAME").value_or(hardware.host);
  // Ranks in containers of one host, or on virtual nodes, share its cores although their names differ.
  std::string boot;
  if (std::ifstream("/proc/sys/kernel/random/boot_id") >> boot) hardware.host = boot;
  return hardware;
}

OneBlasThread::OneBlasThread() : before_(openblas_get_num_threads()) { openblas_set_num_threads(1); }

OneBlasThread::~OneBlasThread() { openblas_set_num_threads(before_); }

}  // namespace starpipe::runtime
