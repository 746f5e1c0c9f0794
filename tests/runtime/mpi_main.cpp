// SPDX-License-Identifier: Apache-2.0
// The main() of tests that run on several ranks and start StarPU themselves.
#include "runtime/mpi_main.hpp"

namespace starpipe::runtime::testing {

const Mpi* mpi = nullptr;

}  // namespace starpipe::runtime::testing

int main(int argc, char** argv) {
  using namespace starpipe::runtime;
  ::testing::InitGoogleTest(&argc, argv);
  const Mpi started;
  testing::mpi = &started;
  testing::report_on_rank_0(started);
  return testing::run_all_tests(started);
}
