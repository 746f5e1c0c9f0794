// SPDX-License-Identifier: Apache-2.0
// runtime.device: cuda is refused before anything runs where it cannot work.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <starpu.h>

#include "runtime/host/cuda_devices.hpp"
#include "runtime/setup/run_checks.hpp"
#include "starpipe/base/error.hpp"
#include "support/message_of.hpp"
#include "support/networks.hpp"

namespace starpipe::runtime {
namespace {

std::string device_problem(const Config& config, void (*check)(const Config&) = check_device) {
  return message_of([&] { check(config); });
}

TEST(Device, IsRefusedWhereThereIsNone) {
  Config config;
  EXPECT_EQ(device_problem(config), "");
  config.runtime.device = {"cuda"};
  if (!built_with_cuda()) {
    EXPECT_EQ(device_problem(config),
              "runtime.device: cuda: this starpipe was built without CUDA (STARPIPE_WITH_CUDA)");
    return;
  }
  EXPECT_EQ(device_problem(config),
            cuda_devices().empty() ? "runtime.device: cuda: no CUDA device found" : "");
  config.runtime.device = {"cpu", "cuda"};
  EXPECT_EQ(device_problem(config),
            cuda_devices().empty() ? "runtime.device: cuda: no CUDA device found" : "")
      << "one worker of two";
  EXPECT_EQ(device_problem(config, check_rank_device), cuda_devices().empty() ? "" : starpu_problem())
      << "a rank of cores, maybe";
  config.runtime.device = {"cuda"};
  EXPECT_EQ(device_problem(config, check_rank_device),
            cuda_devices().empty() ? "runtime.device: cuda: no CUDA device found" : starpu_problem());
}

TEST(Device, NeedsAStarPUThatKeepsGpusBusy) {
#ifdef STARPU_NON_BLOCKING_DRIVERS
  unsetenv("STARPU_WORKERS_CUDAID");
  EXPECT_EQ(starpu_problem(), "");
  setenv("STARPU_WORKERS_CUDAID", "1", 1);
  EXPECT_THAT(starpu_problem(), ::testing::StartsWith("STARPU_WORKERS_CUDAID: "));
  unsetenv("STARPU_WORKERS_CUDAID");
#else
  EXPECT_THAT(starpu_problem(), ::testing::AllOf(::testing::StartsWith("runtime.device: cuda: StarPU"),
                                                 ::testing::HasSubstr("STARPIPE_GPUS=1 scripts/setup")));
#endif
}

TEST(Device, NeedsKernelsForEachLayer) {
  Config config;
  for (const int hidden : {128, 129}) {
    const model::Network network =
        model::build_network(small("gpt", {{"heads", 1}, {"hidden", hidden}}), 1, 1);
    config.runtime.device = {"cpu"};
    EXPECT_NO_THROW(check_kernels(config, network));
    config.runtime.device = {"cuda"};
    if (built_with_cuda() && hidden == 128) {
      EXPECT_NO_THROW(check_kernels(config, network));
    } else {
      EXPECT_THROW(check_kernels(config, network), InputError);
    }
  }
}

}  // namespace
}  // namespace starpipe::runtime
