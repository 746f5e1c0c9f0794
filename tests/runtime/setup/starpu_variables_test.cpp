// SPDX-License-Identifier: Apache-2.0
// Variables that StarPU cannot read are refused, instead of an abort inside StarPU.
#include <string>

#include <gtest/gtest.h>

#include "base/environment.hpp"
#include "runtime/setup/run_checks.hpp"
#include "starpipe/base/error.hpp"
#include "support/message_of.hpp"

namespace starpipe::runtime {
namespace {

/// Returns the message for one variable; empty if its value is accepted.
std::string variable_problem(const char* name, const char* value) {
  const ScopedVariable variable(name, value);
  return message_of([&] { check_starpu_variables(Topology("core:8 pu:2")); });
}

TEST(StarpuVariables, WholeNumbers) {
  for (const char* name :
       {"STARPU_NCPU", "STARPU_NCUDA", "STARPU_LIMIT_MAX_SUBMITTED_TASKS", "STARPU_LIMIT_MIN_SUBMITTED_TASKS",
        "STARPU_MAIN_THREAD_CPUID", "STARPU_WORKERS_NOBIND", "STARPU_MPI_STATS", "STARPU_MPI_NDETACHED_SEND",
        "STARPU_LIMIT_CUDA_MEM", "STARPU_LIMIT_CUDA_12_MEM", "STARPU_MIN_PRIO", "STARPU_MAX_PRIO",
        "STARPU_CALIBRATE", "STARPU_PREFETCH", "STARPU_HISTORY_MAX_ERROR", "STARPU_USE_NUMA"}) {
    for (const char* value : {"abc", "-1", "1.5", "2x", "99999999999"}) {
      EXPECT_EQ(variable_problem(name, value),
                std::string(name) + ": expected a whole number from 0 to 2147483647, got '" + value + "'");
    }
    for (const char* value : {"0", "7", " 7", ""}) EXPECT_EQ(variable_problem(name, value), "") << name;
  }
}

TEST(StarpuVariables, OneThatStarpuWouldNotRead) {
  EXPECT_EQ(variable_problem("STARPU_NCPUS", "1"),
            "STARPU_NCPUS: expected it to be unset (STARPU_NCPU is the limit that is kept), got '1'");
}

// A run that needs more main memory would wait indefinitely.
TEST(StarpuVariables, LimitsOfMainMemory) {
  for (const char* name :
       {"STARPU_LIMIT_CPU_MEM", "STARPU_LIMIT_CPU_NUMA_MEM", "STARPU_LIMIT_CPU_NUMA_0_MEM"})
    EXPECT_NE(variable_problem(name, "1"), "") << name;
}

TEST(StarpuVariables, ListsOfCoresAndGpus) {
  for (const char* name : {"STARPU_WORKERS_CPUID", "STARPU_WORKERS_COREID"}) {
    for (const char* value : {"abc", "-1", "", " ", "0 x", "0;1", "1-2-3", "9999999999"}) {
      EXPECT_EQ(variable_problem(name, value),
                std::string(name) + ": expected numbers of cores, such as '0 2 4-7', got '" + value + "'");
    }
    for (const char* value : {"0", "0 2 4-7", "0,1,2", "1-", " 3", "0, 1"})
      EXPECT_EQ(variable_problem(name, value), "");
  }
  EXPECT_NE(variable_problem("STARPU_WORKERS_CUDAID", "0,1"), "");
  EXPECT_EQ(variable_problem("STARPU_WORKERS_CUDAID", "0 1"), "");
}

TEST(StarpuVariables, ThreadsOfACoreAreNotStarpusChoice) {
  for (const char* value : {"0", "2", "99", "x"}) {
    EXPECT_EQ(variable_problem("STARPU_NTHREADS_PER_CORE", value),
              std::string("STARPU_NTHREADS_PER_CORE: expected 1 (starpipe chooses the cores of its "
                          "workers), got '") +
                  value + "'");
  }
  EXPECT_EQ(variable_problem("STARPU_NTHREADS_PER_CORE", "1"), "");
}

// StarPU would start one worker less than the rank has.
TEST(StarpuVariables, TheMainThreadHasNoCore) {
  EXPECT_EQ(variable_problem("STARPU_MAIN_THREAD_BIND", "1"),
            "STARPU_MAIN_THREAD_BIND: expected 0 (starpipe chooses the cores of its workers), got '1'");
  EXPECT_EQ(variable_problem("STARPU_MAIN_THREAD_BIND", "0"), "");
}

// StarPU would crash, or bind workers to other cores.
TEST(StarpuVariables, CoresThatTheHostDoesNotHave) {
  for (const char* threads : {"WORKERS", "MAIN_THREAD", "MPI_THREAD"}) {
    const std::string by_pu = std::string("STARPU_") + threads + "_CPUID";
    const std::string by_core = std::string("STARPU_") + threads + "_COREID";
    EXPECT_EQ(variable_problem(by_pu.c_str(), "15"), "");
    EXPECT_EQ(variable_problem(by_pu.c_str(), "16"),
              by_pu + ": expected numbers below 16, as this host has 16 hardware threads, got '16'");
    EXPECT_EQ(variable_problem(by_core.c_str(), "7"), "");
    EXPECT_EQ(variable_problem(by_core.c_str(), "8"),
              by_core + ": expected numbers below 8, as this host has 8 cores, got '8'");
    const ScopedVariable other(by_core.c_str(), "1");
    EXPECT_EQ(variable_problem(by_pu.c_str(), "1"),
              by_core + ": unset it or " + by_pu + ": both say where the same threads run");
  }
  EXPECT_NE(variable_problem("STARPU_WORKERS_COREID", "0 2-8"), "");
  EXPECT_EQ(variable_problem("STARPU_WORKERS_COREID", "0 2-7"), "");
}

TEST(StarpuVariables, OthersMayHaveAnyText) {
  for (const char* name :
       {"STARPU_SCHED", "STARPU_HOME", "STARPU_FXT_PREFIX", "STARPU_HOSTNAME", "STARPU_SCHED_ALPHA"})
    EXPECT_EQ(variable_problem(name, "some text"), "");
}

}  // namespace
}  // namespace starpipe::runtime
