// SPDX-License-Identifier: Apache-2.0
// The kernels that OpenBLAS computes with, and its threads.
#include <array>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include <cblas.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/environment.hpp"
#include "runtime/host/hardware.hpp"
#include "runtime/host/product_library.hpp"
#include "starpipe/base/error.hpp"

extern "C" {
void gotoblas_dynamic_init() __attribute__((weak));
void gotoblas_dynamic_quit() __attribute__((weak));
}

namespace {

std::atomic<int> parallel{0};
std::atomic<int> numbers_set{0};
thread_local int threads = 0;  // as OpenMP counts them

}  // namespace

// Libraries call these in place of OpenBLAS's and OpenMP's.
extern "C" int openblas_get_parallel() { return parallel; }
extern "C" void omp_set_num_threads(int number) {
  threads = number;
  ++numbers_set;
}

namespace starpipe::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* variable = "OPENBLAS_CORETYPE";

class Kernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gotoblas_dynamic_init == nullptr) GTEST_SKIP() << "this OpenBLAS has kernels for one processor";
#ifndef __x86_64__
    GTEST_SKIP() << "only x86-64 has kernels for several widths of vectors";
#else
    if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0)
      GTEST_SKIP() << "this processor has no AVX2";
    if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
        __builtin_cpu_supports("avx512bw") != 0)
      best_ = "SkylakeX";
#endif
  }
  ~Kernels() override {
    if (gotoblas_dynamic_init != nullptr) load("");
  }

  // As if OpenBLAS were loaded now, and took `kernels` by itself; "": those that it really takes.
  static void load(const std::string& kernels) {
    const ScopedVariable taken(variable, kernels.empty() ? std::nullopt : std::optional(kernels));
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
  }

  std::string best_ = "Haswell";
  const ScopedVariable not_set_{variable, std::nullopt};
};

// c = a b for 64 x 64 matrices of small whole numbers: exact with any kernels.
bool products_are_right() {
  constexpr int size = 64;
  std::array<float, size * size> a{};
  std::array<float, size * size> b{};
  std::array<float, size * size> c{};
  for (int i = 0; i < size * size; ++i) {
    a[i] = static_cast<float>(i * 7 % 13 - 6);
    b[i] = static_cast<float>(i * 5 % 11 - 5);
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, size, size, size, 1, a.data(), size, b.data(), size,
              0, c.data(), size);
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < size; ++j) {
      float sum = 0;
      for (int k = 0; k < size; ++k) sum += a[i * size + k] * b[k * size + j];
      if (c[i * size + j] != sum) return false;
    }
  }
  return true;
}

TEST_F(Kernels, OfOldProcessorsAreReplaced) {
  for (const char* old : {"Prescott", "Nehalem", "Barcelona", "Core2", "Sandybridge"}) {
    load(old);
    ASSERT_EQ(product_kernels(), old);
    EXPECT_THAT(product_advice(), HasSubstr(old));
    choose_product_kernels();
    EXPECT_EQ(product_kernels(), best_) << old;
    EXPECT_THAT(product_kernels_text(), HasSubstr(std::string("(") + old + " by OpenBLAS itself)"));
    EXPECT_THAT(product_advice(), IsEmpty());
    EXPECT_TRUE(products_are_right()) << old;
    EXPECT_EQ(environment(variable), std::nullopt);
  }
}

TEST_F(Kernels, ThatUseTheProcessorStay) {
  for (const char* good : {"Haswell", "Zen"}) {
    load(good);
    choose_product_kernels();
    EXPECT_EQ(product_kernels(), good);
    EXPECT_THAT(product_advice(), IsEmpty());
  }
}

TEST_F(Kernels, OfTheUserStay) {
  const ScopedVariable by_user(variable, "Prescott");
  load("Prescott");
  choose_product_kernels();
  EXPECT_EQ(product_kernels(), "Prescott");
  EXPECT_EQ(product_kernels_text(), "Prescott (OPENBLAS_CORETYPE is set)");
  EXPECT_THAT(product_advice(), IsEmpty());
}

// OpenMP counts threads for each thread that calls it.
TEST(BlasThreads, AreOneInEachThreadThatAsks) {
  const auto threads_after_calls = [] {
    int seen = 0;
    std::thread([&] {
      use_one_product_thread();
      use_one_product_thread();
      seen = threads;
    }).join();
    return seen;
  };
  parallel = OPENBLAS_THREAD;
  EXPECT_EQ(threads_after_calls(), 0) << "OpenBLAS has threads of its own, and one number for all";
  parallel = OPENBLAS_OPENMP;
  EXPECT_EQ(threads_after_calls(), 1);
  EXPECT_EQ(threads_after_calls(), 1);
  EXPECT_EQ(numbers_set, 2);
}

// OpenMP's library binds the main thread when it is loaded.
TEST(BlasThreads, HaveTheCoresOfTheProcess) {
  const auto cores = [] {
    cpu_set_t set{};
    sched_getaffinity(0, sizeof set, &set);
    return CPU_COUNT(&set);
  };
  const int all = cores();
  if (all == 1) GTEST_SKIP() << "one core";
  note_cores();
  for (const int kind : {OPENBLAS_THREAD, OPENBLAS_OPENMP}) {
    parallel = kind;
    cpu_set_t one{};
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    restore_cores();
    EXPECT_EQ(cores(), kind == OPENBLAS_OPENMP ? all : 1);
  }
}

// Lets this process have room for one more buffer of OpenBLAS, and asks for more.
[[noreturn]] void take_buffers_with_room_for_one() {
  std::ifstream pages("/proc/self/statm");
  rlim_t used = 0;
  pages >> used;
  const rlim_t limit = used * 4096 + (rlim_t{200} << 20U);
  const rlimit limits = {.rlim_cur = limit, .rlim_max = limit};
  setrlimit(RLIMIT_AS, &limits);
  try {
    // OpenBLAS may have taken some when it was loaded.
    for (int products = 1; products <= 16; ++products) take_product_buffers(products);
  } catch (const std::runtime_error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(3);
  }
  _exit(0);
}

// OpenBLAS itself would wait indefinitely for a buffer.
TEST(BlasMemory, ThatIsMissingIsToldAtOnce) {
  EXPECT_NO_THROW(require_free_memory(1U << 20U, "a test"));
  EXPECT_EXIT(take_buffers_with_room_for_one(), ::testing::ExitedWithCode(3),
              "out of memory: 128.0 MiB for OpenBLAS.*; the process may have .* \\(ulimit -v\\)");
}

TEST(BlasKernels, HaveNoLimitOfInstructions) {
  EXPECT_NO_THROW(set_product_instructions("native"));
  EXPECT_THROW(set_product_instructions("avx2"), InputError);
}

TEST(BlasMemory, MustBeThereWhenOpenBlasWithOpenMpIsLoaded) {
  for (const int kind : {OPENBLAS_THREAD, OPENBLAS_OPENMP}) {
    parallel = kind;
    EXPECT_TRUE(has_room_to_load_products());
    rlimit before{};
    getrlimit(RLIMIT_AS, &before);
    const rlimit none{1, before.rlim_max};
    setrlimit(RLIMIT_AS, &none);
    const bool has_room = has_room_to_load_products();
    setrlimit(RLIMIT_AS, &before);
    EXPECT_EQ(has_room, kind == OPENBLAS_THREAD);
  }
}

}  // namespace
}  // namespace starpipe::runtime
