// SPDX-License-Identifier: Apache-2.0
// The libraries that replace cuBLAS until it is needed (cmake/LateCublas.cmake). The test runs twice: as
// every program without a GPU, and with libraries that find a device.
#include <cstddef>

#include <dlfcn.h>
#include <gtest/gtest.h>

extern "C" {
std::size_t cublasLtGetVersion();
const char* cublasGetStatusString(int status);
}

namespace {

TEST(LateCublas, EndsTheProgramWithoutADriver) {
  EXPECT_EQ(dlopen(STARPIPE_CUBLAS, RTLD_LAZY | RTLD_NOLOAD), nullptr) << "cuBLAS itself is loaded";
  EXPECT_DEATH(static_cast<void>(cublasLtGetVersion()),
               "libcublasLt[^ ]* is needed and was not loaded: there is no driver for GPUs");
}

TEST(LateCublas, JumpsToTheLibraryWhereADeviceIs) {
  void* const library = dlopen(STARPIPE_CUBLAS, RTLD_LAZY | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto text =
      reinterpret_cast<decltype(&cublasGetStatusString)>(dlsym(library, "cublasGetStatusString"));
  const auto version = reinterpret_cast<decltype(&cublasLtGetVersion)>(dlsym(library, "cublasLtGetVersion"));
  EXPECT_NE(text, &cublasGetStatusString);
  EXPECT_STREQ(cublasGetStatusString(1), text(1));
  EXPECT_STREQ(cublasGetStatusString(1), "the library was not initialized");
  EXPECT_EQ(cublasLtGetVersion(), version());
}

}  // namespace
