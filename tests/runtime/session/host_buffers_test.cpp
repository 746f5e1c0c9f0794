// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/host_buffers.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace starpipe::runtime {
namespace {

constexpr std::size_t small_bytes = 64;
constexpr std::size_t large_bytes = std::size_t{1} << 20U;
constexpr std::size_t huge_bytes = 5 * large_bytes;

TEST(HostBuffers, ServeTheNextDatumOfTheSameSize) {
  const KeptHostBuffers until_the_end;
  void* const first = take_host_buffer(large_bytes);
  void* const second = take_host_buffer(large_bytes);
  ASSERT_TRUE(first != nullptr && second != nullptr);
  give_back_host_buffer(first, large_bytes);
  void* const other = take_host_buffer(large_bytes + 1);
  EXPECT_NE(other, first) << "is of another size";
  EXPECT_EQ(take_host_buffer(large_bytes), first);
  give_back_host_buffer(second, large_bytes);
  give_back_host_buffer(first, large_bytes);
  EXPECT_EQ(take_host_buffer(large_bytes), first) << "was used last, so caches may have it";
  give_back_host_buffer(first, large_bytes);
  give_back_host_buffer(other, large_bytes + 1);
}

TEST(HostBuffers, HaveAllTheirBytes) {
  for (const std::size_t size : {std::size_t{0}, small_bytes, large_bytes, huge_bytes, huge_bytes + 3}) {
    void* const buffer = take_host_buffer(size);
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer) % 16, 0U);
    std::memset(buffer, 1, size);
    give_back_host_buffer(buffer, size);
  }
  const KeptHostBuffers frees_them;
}

#ifndef __SANITIZE_ADDRESS__  // its allocator ends the program
TEST(HostBuffers, AreNullWithoutMemory) { EXPECT_EQ(take_host_buffer(SIZE_MAX / 2), nullptr); }
#endif

TEST(ZeroMemory, IsZeroAndNobodyElses) {
  for (const std::size_t size : {std::size_t{0}, small_bytes, huge_bytes / sizeof(float) + 3}) {
    const HostMemory first = zero_memory(size);
    ASSERT_EQ(first.values.size(), size);
    std::ranges::fill(first.values, 1.0F);
    const HostMemory second = zero_memory(size);
    EXPECT_TRUE(std::ranges::all_of(second.values, [](float value) { return value == 0; }));
    std::ranges::fill(second.values, 2.0F);
    EXPECT_TRUE(std::ranges::all_of(first.values, [](float value) { return value == 1; }));
  }
}

long page_faults() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return use.ru_minflt;
}

TEST(ZeroMemory, HasFewPageFaultsWhereItIsReadBeforeItIsWritten) {
  std::string mode;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), mode);
  if (mode.empty() || mode.find("[never]") != std::string::npos) GTEST_SKIP() << "no huge pages: " << mode;
  const HostMemory memory = zero_memory((std::size_t{64} << 20U) / sizeof(float));
  const long before = page_faults();
  for (float& value : memory.values) value += 1;
  // In small pages there would be 32,768. The system may be short of huge pages.
  EXPECT_LT(page_faults() - before, 8000);
}

}  // namespace
}  // namespace starpipe::runtime
