// SPDX-License-Identifier: Apache-2.0
// GoogleTest on several ranks: all run the same tests; rank 0 reports, the others print only their failures.
#pragma once

#include <cstdio>

#include <gtest/gtest.h>
#include <mpi.h>

namespace starpipe {

/// Prints failures only, each with the rank.
class FailuresOnly : public ::testing::EmptyTestEventListener {
 public:
  explicit FailuresOnly(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_,
                 result.file_name() != nullptr ? result.file_name() : "", result.line_number(),
                 result.message());
  }
  int rank_;
};

/// Must be called after InitGoogleTest.
inline void report_on_rank_0(MPI_Comm comm) {
  // An exception on one rank would leave the others waiting: end the job instead.
  GTEST_FLAG_SET(catch_exceptions, false);
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  if (rank == 0) return;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOnly(rank));
}

/// Calls RUN_ALL_TESTS on every rank. If a test fails on any rank, the result is not 0 on all ranks.
inline int run_all_tests(MPI_Comm comm) {
  const int mine = RUN_ALL_TESTS();
  int any = 0;
  MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, comm);
  return any;
}

}  // namespace starpipe
