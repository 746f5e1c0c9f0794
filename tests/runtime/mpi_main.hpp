// SPDX-License-Identifier: Apache-2.0
// GoogleTest on several ranks: all run the same tests; rank 0 reports, others only what fails there.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "runtime/host/mpi.hpp"

namespace starpipe::runtime::testing {

/// The value of `--name=value`, or `otherwise`.
inline std::string option(int argc, char** argv, std::string_view name, std::string otherwise) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(name) && argument.size() > name.size() && argument[name.size()] == '=') {
      otherwise = argument.substr(name.size() + 1);
    }
  }
  return otherwise;
}

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

/// Call after InitGoogleTest.
inline void report_on_rank_0(const Mpi& started) {
  // An exception on one rank would leave the others waiting: end the job instead.
  GTEST_FLAG_SET(catch_exceptions, false);
  if (started.rank() == 0) return;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailuresOnly(started.rank()));
}

/// RUN_ALL_TESTS on every rank: not 0 on all when one has a failure.
inline int run_all_tests(const Mpi& started) {
  const int mine = RUN_ALL_TESTS();
  int any = 0;
  MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, started.comm());
  return any;
}

}  // namespace starpipe::runtime::testing
