// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/host/mpi.hpp"
#include "runtime/session/policy_choice.hpp"
#include "starpipe/runtime/config/config.hpp"

namespace starpipe::runtime::testing {

/// The MPI of all tests of a program with the main() of mpi_main.cpp.
extern const Mpi* mpi;

/// The policy of a configuration with this runtime.
inline PolicyChoice policy_of(const RuntimeConfig& runtime) {
  Config config;
  config.runtime = runtime;
  return configured_policy(config);
}

}  // namespace starpipe::runtime::testing
