// SPDX-License-Identifier: Apache-2.0
// The ports through which the transfers of a step pass.
#include "plan/explain/busy_ports.hpp"

#include <gtest/gtest.h>

#include "plan/explain/recorded_step.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"

namespace starpipe::plan {
namespace {

Costs costs_with(Links links) {
  Costs costs;
  costs.links = std::move(links);
  costs.sizes = {StageSizes{.activation = 3, .gradient = 2}};
  return costs;
}

TEST(BusyPorts, HaveTheBytesOfTheirTransfers) {
  const Schedule schedule = make_schedule("gpipe", {.workers = 3, .microbatches = 4});
  const Costs costs = costs_with(Links({{.name = "network", .link = {.alpha = 1, .beta = 0.5}}}));
  const std::vector<BusyPort> ports = busy_ports(simulated_step(schedule, costs), costs);
  // Worker 1 sends 4 activations and 4 gradients, and receives as many.
  ASSERT_EQ(ports.size(), 6U);
  EXPECT_EQ(to_string(ports[0], costs.links), "out of worker 1 at network");
  EXPECT_EQ(to_string(ports[1], costs.links), "into worker 1 at network");
  for (const BusyPort& port : ports) {
    const bool activations = port.member == 1 || port.out == (port.member == 0);
    const bool gradients = port.member == 1 || port.out == (port.member == 2);
    EXPECT_DOUBLE_EQ(port.passing, 0.5 * 4 * ((activations ? 3 : 0) + (gradients ? 2 : 0)));
  }
}

TEST(BusyPorts, OfGroupsCountWhatLeavesThem) {
  const Schedule schedule = make_schedule("gpipe", {.workers = 4, .microbatches = 4});
  Costs costs = costs_with(
      Links({{.name = "host", .workers = 2}, {.link = {.alpha = 1, .beta = 1}, .sharing = Sharing::fair}}));
  costs.workers_of_rank = 2;
  const std::vector<BusyPort> ports = busy_ports(simulated_step(schedule, costs), costs);
  ASSERT_EQ(ports.size(), 4U);
  EXPECT_EQ(to_string(ports[0], costs.links), "out of host 0 (workers 0 to 1) at level 1");
  EXPECT_EQ(ports[0].passing, 12);
  EXPECT_EQ(to_string(ports[1], costs.links), "into host 1 (workers 2 to 3) at level 1");
  EXPECT_EQ(ports[3].passing, 8);
}

TEST(BusyPorts, ARankReceivesADatumOnce) {
  const Schedule schedule = make_schedule("fsdp", {.workers = 4, .microbatches = 4});
  Costs costs = costs_with(Links({{.workers = 2}, {.link = {.beta = 1}}}));
  costs.sizes.front().weights = 10;
  const auto passing = [&](int workers_of_rank) {
    costs.workers_of_rank = workers_of_rank;
    return busy_ports(simulated_step(schedule, costs), costs).front().passing;
  };
  EXPECT_EQ(passing(1), 2 * passing(2));
}

TEST(BusyPorts, NeedABandwidth) {
  const Schedule schedule = make_schedule("gpipe", {.workers = 3, .microbatches = 4});
  const Costs costs = costs_with(Link{.alpha = 1});
  EXPECT_TRUE(busy_ports(simulated_step(schedule, costs), costs).empty());
}

}  // namespace
}  // namespace starpipe::plan
