// SPDX-License-Identifier: Apache-2.0
// The slots of ranks and the workers in them.
#include "runtime/host/worker_map.hpp"

#include <stdexcept>

#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"

namespace starpipe::runtime {
namespace {

TEST(WorkerMap, FindsRanksAndBack) {
  const WorkerMap map(2, std::vector<int>{4, 0, 3, 1, 2});
  EXPECT_EQ(map.workers(), 5);
  EXPECT_EQ(map.count(0), 2);
  EXPECT_EQ(map.rank_of(1), 0);
  EXPECT_EQ(map.rank_of(3), 0);
  EXPECT_EQ(map.rank_of(0), 1);
  for (int worker = 0; worker < 5; ++worker) EXPECT_EQ(map.worker(map.slot(worker)), worker);
  EXPECT_EQ(map.workers_of(0), (std::vector<int>{1, 3}));
  EXPECT_EQ(map.workers_of(1), (std::vector<int>{4, 2, 0}));
  EXPECT_THROW(WorkerMap(1, std::vector<int>{0, 0}), std::logic_error);
  EXPECT_THROW(WorkerMap(1, std::vector<int>{0, 2}), std::logic_error);
  EXPECT_THROW(WorkerMap(1, 2), InputError);
}

}  // namespace
}  // namespace starpipe::runtime
