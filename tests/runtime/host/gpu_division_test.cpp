// SPDX-License-Identifier: Apache-2.0
// The GPUs of a host are divided among its ranks.
#include <gmock/gmock.h>

#include "runtime/host/gpu_share.hpp"
#include "runtime/host/machines.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::vector<int>> numbers(const std::vector<std::vector<Device>>& by_rank) {
  std::vector<std::vector<int>> all;
  for (const auto& rank : by_rank) {
    auto& mine = all.emplace_back();
    for (const Device& gpu : rank) mine.push_back(gpu.number);
  }
  return all;
}

TEST(DivideGpus, RanksDivideThemByNearness) {
  const auto gpus = gpus_of({.gpus = {{0, 2, 4, 6}, {1, 3, 5, 7}}});
  const auto of = [&](const std::vector<int>& workers) {
    std::vector<RankWithGpus> ranks;
    for (const int count : workers) ranks.push_back({gpus, count});
    return numbers(divide_gpus(ranks));
  };
  EXPECT_THAT(of({8}), ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  EXPECT_THAT(of({4, 4}), ElementsAre(ElementsAre(0, 2, 4, 6), ElementsAre(1, 3, 5, 7)));
  EXPECT_THAT(of({3, 2}), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 6)));
  EXPECT_THAT(of({2, 1}), ElementsAre(ElementsAre(0, 2), ElementsAre(4))) << "one node";
  EXPECT_THAT(of({16}), ElementsAre(ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7)));
}

TEST(DivideGpus, FewWorkersGetNeighbours) {
  const auto gpus = gpus_of({.gpus = {{0, 1, 2}, {3, 4, 5, 6}}});
  EXPECT_THAT(numbers(divide_gpus(std::vector<RankWithGpus>{{gpus, 4}})),
              ElementsAre(ElementsAre(3, 4, 5, 6)));
}

TEST(DivideGpus, RanksKeepTheGpusOfTheirLauncher) {
  auto gpus = gpus_of({.gpus = {{0, 1}, {2, 3}}});
  // Each rank's CUDA counts from 0.
  std::vector<RankWithGpus> ranks;
  for (Device gpu : {gpus[3], gpus[1]}) {
    gpu.number = 0;
    ranks.push_back({{gpu}, 1});
  }
  const auto by_rank = divide_gpus(ranks);
  EXPECT_EQ(by_rank[0].front().pci, gpus[3].pci);
  EXPECT_EQ(by_rank[1].front().pci, gpus[1].pci);
  EXPECT_THAT(divide_gpus(std::vector<RankWithGpus>{{{}, 2}}), ElementsAre(IsEmpty()));
}

}  // namespace
}  // namespace starpipe::runtime
