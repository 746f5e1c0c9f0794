// SPDX-License-Identifier: Apache-2.0
// oneDNN's name, its kernels, and the cores of the process.
#include <optional>

#include <gmock/gmock.h>
#include <sched.h>

#include "base/environment.hpp"
#include "runtime/host/product_library.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::MatchesRegex;

TEST(Onednn, IsNamedWithItsKernels) {
  EXPECT_THAT(product_library(), MatchesRegex("oneDNN [0-9]+\\.[0-9]+\\.[0-9]+"));
  const ScopedVariable not_set("ONEDNN_MAX_CPU_ISA", std::nullopt);
  const ScopedVariable not_set_either("DNNL_MAX_CPU_ISA", std::nullopt);
  EXPECT_EQ(product_kernels_text(), product_kernels());
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512bw") != 0) {
    EXPECT_THAT(product_kernels(), ::testing::AnyOf("AMX", ::testing::StartsWith("AVX-512")));
  } else if (__builtin_cpu_supports("avx2") != 0) {
    EXPECT_EQ(product_kernels(), "AVX2");
  }
#endif
  EXPECT_EQ(product_advice(), "");
  const ScopedVariable limit("DNNL_MAX_CPU_ISA", "AVX2");
  EXPECT_EQ(product_kernels_text(), product_kernels() + " (DNNL_MAX_CPU_ISA is set)");
}

// OpenMP's library binds the main thread when it is loaded.
TEST(Onednn, LeavesTheProcessItsCores) {
  const auto cores = [] {
    cpu_set_t set{};
    sched_getaffinity(0, sizeof set, &set);
    return CPU_COUNT(&set);
  };
  const int all = cores();
  if (all == 1) GTEST_SKIP() << "one core";
  note_cores();
  cpu_set_t one{};
  CPU_SET(sched_getcpu(), &one);
  sched_setaffinity(0, sizeof one, &one);
  restore_cores();
  EXPECT_EQ(cores(), all);
}

}  // namespace
}  // namespace starpipe::runtime
