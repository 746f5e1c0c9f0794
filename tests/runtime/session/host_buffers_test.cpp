// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/host_buffers.hpp"

#include <cstdint>
#include <cstring>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace starpipe::runtime
