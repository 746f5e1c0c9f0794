// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime::testing {

/// The MPI of all tests of a program with the main() of mpi_main.cpp.
extern const Mpi* mpi;

}  // namespace starpipe::runtime::testing
