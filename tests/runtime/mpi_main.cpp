// SPDX-License-Identifier: Apache-2.0
// The main() of tests that run on several ranks and start StarPU themselves.
#include "runtime/mpi_main.hpp"

#include "runtime/started_mpi.hpp"

namespace starpipe::runtime::testing {

const Mpi* mpi = nullptr;

}  // namespace starpipe::runtime::testing

int main(int argc, char** argv) {
  namespace tests = starpipe::runtime::testing;
  ::testing::InitGoogleTest(&argc, argv);
  const starpipe::runtime::StartedMpi library;
  const starpipe::runtime::Mpi started;
  tests::mpi = &started;
  tests::report_on_rank_0(started);
  return tests::run_all_tests(started);
}
