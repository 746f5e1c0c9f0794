// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/host/topology.hpp"

namespace starpipe::runtime {

/// Where this process runs.
struct Hardware {
  std::string machine;  ///< Slurm's name of the node, else the host's name
  std::string host;     ///< identifies the host, whatever its name: equal on one host, different on two
  std::string cpu;      ///< the processor's name, when the host tells it
  int cores = 1;        ///< within the binding
  std::string binding;  ///< PUs
};

Hardware find_hardware();

/// Binds this process to PUs for its own lifetime.
class ProcessBinding {
 public:
  explicit ProcessBinding(const std::string& pus) : before_(Topology::host().binding()) {
    Topology::host().bind(pus);
  }
  ~ProcessBinding() { Topology::host().bind(before_); }
  ProcessBinding(const ProcessBinding&) = delete;
  ProcessBinding& operator=(const ProcessBinding&) = delete;

 private:
  std::string before_;
};

}  // namespace starpipe::runtime
