// SPDX-License-Identifier: Apache-2.0
// The links of `runtime.links`, between the workers of a run.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/setup/experiment.hpp"
#include "support/message_of.hpp"

namespace starpipe::runtime {
namespace {

using ::testing::HasSubstr;

const plan::LinkLevel pair = {.name = "pair", .workers = 2, .link = {.alpha = 1}};
const plan::LinkLevel network = {.name = "network", .link = {.alpha = 2}, .sharing = plan::Sharing::fair};

RuntimeConfig config_of(std::vector<plan::LinkLevel> levels) {
  return {.links_file = "net.yaml", .links = plan::Links(std::move(levels))};
}

plan::Costs of_run(const RuntimeConfig& config, int workers, int ranks) {
  return with_links_of_ranks({}, config, workers, ranks);
}

std::vector<RankLocation> hosts(const std::vector<std::string>& machines, int workers) {
  std::vector<RankLocation> locations;
  for (const std::string& machine : machines) {
    RankLocation& location = locations.emplace_back();
    location.machine = machine;
    location.workers = workers;
  }
  return locations;
}

TEST(RealLinks, WorkersOfARankShareTheirData) {
  for (const RuntimeConfig& config : {config_of({network}), config_of({pair, network})}) {
    const plan::Costs costs = of_run(config, 8, 4);
    EXPECT_EQ(costs.workers_of_rank, 2);
    EXPECT_TRUE(costs.ordered_messages);
    EXPECT_TRUE(costs.relays);
    EXPECT_EQ(costs.links, plan::Links({{.name = "rank", .workers = 2}, network}));
  }
  EXPECT_EQ(of_run(config_of({pair, network}), 8, 8).links, config_of({pair, network}).links);
  EXPECT_EQ(of_run(config_of({pair, network}), 8, 2).links,
            plan::Links({{.name = "rank", .workers = 4}, network}));
  EXPECT_FALSE(of_run(config_of({network}), 8, 1).links.takes_time());
}

TEST(RealLinks, WorkersOnGpusSendToEachOther) {
  RuntimeConfig config = config_of({pair, network});
  config.device = {"cuda"};
  for (const int ranks : {1, 4, 8}) {
    EXPECT_EQ(of_run(config, 8, ranks).links, config.links);
    EXPECT_FALSE(of_run(config, 8, ranks).relays);
  }
}

TEST(RealLinks, WithoutAFileTheCostsStay) {
  plan::Costs costs;
  costs.links = plan::Link{.alpha = 3};
  EXPECT_EQ(with_links_of_ranks(costs, {}, 8, 3).links, costs.links);
  EXPECT_THAT(message_of([&] { with_links_of_ranks(costs, config_of({network}), 8, 4); }),
              HasSubstr("does not apply with links of runtime.emulate"));
}

TEST(RealLinks, LevelsMustFitTheRanks) {
  const auto refusal = [](const RuntimeConfig& config, int workers, int ranks) {
    return message_of([&] { of_run(config, workers, ranks); });
  };
  EXPECT_EQ(refusal(config_of({network}), 8, 3),
            "runtime.links: net.yaml: 8 workers cannot be divided equally among 3 ranks");
  EXPECT_EQ(refusal(config_of({pair, network}), 6, 2),
            "runtime.links: net.yaml: level 0 (pair) has groups of 2 workers, a rank has 3");
  EXPECT_EQ(
      refusal(config_of({{.workers = 4}, network}), 6, 3),
      "runtime.links: net.yaml: level 0 has groups of 4 workers, which do not divide the 6 workers of the "
      "run");
}

TEST(RealLinks, LevelsMustFitTheHosts) {
  const auto refusal = [](const RuntimeConfig& config, const std::vector<RankLocation>& locations) {
    return message_of([&] { check_link_levels(config, 8, locations); });
  };
  EXPECT_EQ(refusal(config_of({network}), hosts({"a", "b", "c", "d"}, 2)), "");
  EXPECT_EQ(refusal(config_of({network}), hosts({"a", "a", "a", "a"}, 2)), "");
  EXPECT_EQ(refusal(config_of({pair, network}), hosts({"a", "a", "b", "b"}, 1)), "");
  EXPECT_EQ(refusal(config_of({network}), hosts({"a", "a", "b", "b"}, 2)),
            "runtime.links: net.yaml: no level has groups of 4 workers, the workers of a host, of 8");
  EXPECT_EQ(
      refusal(config_of({network}), hosts({"a", "a", "b"}, 2)),
      "runtime.links: net.yaml: host a has 4 neighbouring workers, host b has 2; the groups of a level are "
      "equal");
  EXPECT_EQ(refusal({}, hosts({"a", "a", "b"}, 2)), "");
}

}  // namespace
}  // namespace starpipe::runtime
