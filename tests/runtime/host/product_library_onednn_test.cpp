// SPDX-License-Identifier: Apache-2.0
// oneDNN's name, its kernels, and the cores of the process.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string_view>

#include <gmock/gmock.h>
#include <sched.h>

#include "base/environment.hpp"
#include "runtime/host/product_library.hpp"
#include "starpipe/base/error.hpp"

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

/// Ends the process: with the message of the first word that is refused on standard error.
[[noreturn]] void set_in_turn(std::initializer_list<std::string_view> words) {
  try {
    for (const std::string_view word : words) set_product_instructions(word);
  } catch (const InputError& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(2);
  }
  std::_Exit(0);
}

// A process can limit oneDNN only once. So each case runs in a process of its own.
TEST(OnednnDeathTest, TakesOneLimitOfInstructions) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") == 0) GTEST_SKIP() << "no AVX2";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  using ::testing::ExitedWithCode;
  const ScopedVariable not_set("ONEDNN_MAX_CPU_ISA", std::nullopt);
  const ScopedVariable not_set_either("DNNL_MAX_CPU_ISA", std::nullopt);
  EXPECT_EXIT(set_in_turn({"native", "native"}), ExitedWithCode(0), "");
  EXPECT_EXIT(set_in_turn({"avx2", "avx2"}), ExitedWithCode(0), "");
  EXPECT_EXIT(set_in_turn({"avx2", "native"}), ExitedWithCode(2),
              "runtime.instructions: native: this process computes with avx2 since its first run");
  EXPECT_EXIT(set_in_turn({"native", "avx2"}), ExitedWithCode(2),
              "runtime.instructions: avx2: this process computes with native since its first run");
  EXPECT_EXIT(static_cast<void>(product_kernels());
              set_in_turn({"avx2"}), ExitedWithCode(2),
              "runtime.instructions: avx2: this process has computed with .* before");
  const ScopedVariable limit("DNNL_MAX_CPU_ISA", "AVX2");
  EXPECT_EXIT(set_in_turn({"avx2"}), ExitedWithCode(2),
              "DNNL_MAX_CPU_ISA: contradicts runtime.instructions: avx2");
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
