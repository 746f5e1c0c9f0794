// SPDX-License-Identifier: Apache-2.0
// The main() of tests that run on several ranks and start StarPU themselves.
#include "runtime/started_mpi.hpp"
#include "support/rank_reports.hpp"

namespace starpipe::runtime::testing {

const Mpi* mpi = nullptr;

}  // namespace starpipe::runtime::testing

int main(int argc, char** argv) {
  namespace tests = starpipe::runtime::testing;
  ::testing::InitGoogleTest(&argc, argv);
  const starpipe::runtime::StartedMpi library;
  const starpipe::runtime::Mpi started;
  tests::mpi = &started;
  starpipe::report_on_rank_0(started.comm());
  return starpipe::run_all_tests(started.comm());
}
