// SPDX-License-Identifier: Apache-2.0
// Which GPUs a rank gets, and what is refused before anything runs where there is none.
#include "runtime/gpus.hpp"

#include <gtest/gtest.h>

#include <set>

#include "runtime/devices.hpp"
#include "starpipe/plan/error.hpp"

namespace starpipe::runtime {
namespace {

using Gpus = std::vector<int>;

TEST(GpusOfRank, DivideThemIntoBlocks) {
  EXPECT_EQ(gpus_of_rank(4, 1, 0, 4), (Gpus{0, 1, 2, 3}));
  EXPECT_EQ(gpus_of_rank(4, 2, 0, 2), (Gpus{0, 1}));
  EXPECT_EQ(gpus_of_rank(4, 2, 1, 2), (Gpus{2, 3}));
  EXPECT_EQ(gpus_of_rank(3, 2, 1, 8), (Gpus{1, 2}));
}

TEST(GpusOfRank, AreNoMoreThanItsWorkers) {
  EXPECT_EQ(gpus_of_rank(8, 1, 0, 3), (Gpus{0, 1, 2}));
  EXPECT_EQ(gpus_of_rank(8, 2, 1, 1), (Gpus{4}));
}

TEST(GpusOfRank, AreSharedByNeighboursWhereRanksAreMore) {
  EXPECT_EQ(gpus_of_rank(1, 3, 2, 5), (Gpus{0}));
  EXPECT_EQ(gpus_of_rank(2, 4, 1, 1), (Gpus{0}));
  EXPECT_EQ(gpus_of_rank(2, 4, 2, 1), (Gpus{1}));
}

TEST(GpusOfRank, CoverAll) {
  for (int gpus = 1; gpus <= 9; ++gpus) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      std::multiset<int> used;
      for (int rank = 0; rank < ranks; ++rank) {
        for (const int gpu : gpus_of_rank(gpus, ranks, rank, 100)) used.insert(gpu);
      }
      for (int gpu = 0; gpu < gpus; ++gpu) EXPECT_GE(used.count(gpu), 1U) << gpus << " for " << ranks;
      if (ranks <= gpus) {
        EXPECT_EQ(used.size(), static_cast<std::size_t>(gpus)) << ranks;
      }
    }
  }
}

std::string problem(const Config& config) {
  try {
    check_device(config);
    return {};
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST(Device, IsRefusedWhereThereIsNone) {
  Config config;
  EXPECT_EQ(problem(config), "");
  config.runtime.device = "cuda";
  if (!built_with_cuda()) {
    EXPECT_EQ(problem(config),
              "runtime.device: cuda: this starpipe was built without CUDA (STARPIPE_WITH_CUDA)");
    return;
  }
  EXPECT_EQ(problem(config), cuda_devices().empty() ? "runtime.device: cuda: no CUDA device found" : "");
  config.runtime.emulate.emplace();
  EXPECT_EQ(problem(config), "runtime.device: cuda: runtime.emulate needs device cpu");
}

TEST(Device, NeedsKernelsForEachLayer) {
  model::ModelConfig gpt;
  gpt.layers = 1;
  gpt.heads = 1;
  gpt.context = 4;
  Config config;
  for (const int hidden : {128, 129}) {
    gpt.hidden = hidden;
    const model::Network network = model::build_network(gpt, 1, 1);
    config.runtime.device = "cpu";
    EXPECT_NO_THROW(check_kernels(config, network));
    config.runtime.device = "cuda";
    if (built_with_cuda() && hidden == 128) {
      EXPECT_NO_THROW(check_kernels(config, network));
    } else {
      EXPECT_THROW(check_kernels(config, network), InputError);
    }
  }
}

}  // namespace
}  // namespace starpipe::runtime
