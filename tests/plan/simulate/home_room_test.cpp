// SPDX-License-Identifier: Apache-2.0
// Homes with little memory: how many stashes may wait there at once, whatever the times, and who is refused.
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/formats/schedule_json.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::array one_stash = {1.0};

/// Returns how many stashes of a worker wait at homes of this kind at once in a run, at most: from the start
/// of O to the end of L.
int max_waiting(const Schedule& schedule, const Timeline& timeline, int worker, Home home) {
  int most = 0;
  const std::vector<JobId> copies = schedule.copies_of(worker, Channel::out);
  const auto waits = [&](JobId id, double time) {
    const auto [s, b, pass] = schedule.job(id);
    return pass == Pass::O && schedule.home(s, b) == home && timeline.spans[id].start <= time &&
           timeline.spans[schedule.reload(s, b)].end > time;
  };
  for (const JobId now : copies) {
    const double time = timeline.spans[now].start;
    most = std::max(most, static_cast<int>(std::ranges::count_if(
                              copies, [&](JobId other) { return waits(other, time); })));
  }
  return most;
}

Schedule all_on_host(const char* name, int workers, int microbatches) {
  return make_schedule(name, {.workers = workers, .microbatches = microbatches, .homes = {Home::host}});
}

// 1F1B has run W - w forward passes on worker w when its first B begins; then F and BW alternate, so that F
// makes a stash when one more has come back.
TEST(HomeRoom, OfOneForwardOneBackward) {
  EXPECT_THAT(waiting_at_homes(all_on_host("1f1b", 4, 8), Home::host, one_stash), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(waiting_at_homes(all_on_host("gpipe", 2, 5), Home::host, one_stash), ElementsAre(5, 5));
  EXPECT_THAT(waiting_at_homes(all_on_host("1f1b", 4, 8), Home::disk, one_stash), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(waiting_at_homes(all_on_host("1f1b", 2, 4), Home::host, std::array{10.0, 7.0}),
              ElementsAre(20, 7));
}

/// No run has more stashes at a home than the bound says; copies that are slow enough reach it mostly.
TEST(HomeRoom, IsABoundWhateverTheTimes) {
  testing::Random random(17);
  int tried = 0;
  int reached = 0;
  while (tried < rounds(300)) {
    const Schedule schedule(
        testing::random_spec(random, {.one_worker_a_stash = true, .copies = true, .sound_priority = 1}));
    if (!schedule.copies() || !check(schedule).ok()) continue;
    ++tried;
    for (const Home home : {Home::host, Home::disk}) {
      const std::vector<double> bound = waiting_at_homes(schedule, home, one_stash);
      std::vector<int> most(bound.size(), 0);
      for (int times = 0; times < 6; ++times) {
        Costs costs{
            .durations = {{0.25 * testing::between(random, 0, 8), 0.25 * testing::between(random, 0, 8),
                           0.25 * testing::between(random, 0, 8)}}};
        costs.set_copy(0.25 * testing::between(random, 0, 12));
        const Timeline timeline = simulate(schedule, costs);
        for (int w = 0; w < schedule.workers(); ++w)
          most[index(w)] = std::max(most[index(w)], max_waiting(schedule, timeline, w, home));
      }
      for (std::size_t w = 0; w < bound.size(); ++w) {
        EXPECT_LE(most[w], bound[w]) << "worker " << w;
        reached += bound[w] > 0 && most[w] == static_cast<int>(bound[w]) ? 1 : 0;
      }
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(reached, tried);
}

Costs with_room(std::uint64_t memory, int workers, double copy = 1) {
  Costs costs{.durations = {{1, 2, 0}}, .sizes = {{.stash = 100}}};
  costs.set_copy(copy);
  costs.host->memory = memory;
  costs.host->workers = workers;
  return costs;
}

TEST(HomeRoom, IsEnoughOrTheScheduleIsRefused) {
  const Schedule schedule = all_on_host("1f1b", 4, 8);
  EXPECT_NO_THROW(simulate(schedule, with_room(1000, 4)));
  EXPECT_THAT([&] { return simulate(schedule, with_room(999, 4)); },
              ThrowsMessage<InputError>(HasSubstr(
                  "host_link: memory: up to 1000 B of stashes of workers 0 to 3 wait there at once, "
                  "more than 999 B")));
  EXPECT_NO_THROW(simulate(schedule, with_room(700, 2)));
  EXPECT_THAT([&] { return simulate(schedule, with_room(699, 2)); },
              ThrowsMessage<InputError>(HasSubstr("workers 0 to 1")));
  EXPECT_THAT([&] { return simulate(schedule, with_room(299, 1)); },
              ThrowsMessage<InputError>(HasSubstr("of stashes of worker 0 wait there")));
  Costs of_peers = with_room(1000, 4);
  of_peers.peer->memory = 1000;
  EXPECT_THAT([&] { return simulate(schedule, of_peers); },
              ThrowsMessage<InputError>(HasSubstr("peer_link: memory")));
  Costs no_sizes = with_room(1000, 4);
  no_sizes.sizes = {{}};
  EXPECT_THAT([&] { return simulate(schedule, no_sizes); },
              ThrowsMessage<InputError>(HasSubstr("nothing says how many bytes a stash has")));
  EXPECT_NO_THROW(simulate(make_schedule("1f1b", {.workers = 4, .microbatches = 8}), no_sizes));
}

// With room for few stashes `auto` computes F again for the others, which takes longer.
TEST(HomeRoom, AutoKeepsToIt) {
  const Schedule kept = make_schedule("1f1b", {.workers = 8, .microbatches = 16});
  const auto fitted = [&](std::optional<std::uint64_t> memory) {
    Costs costs = with_room(0, 8, 0.5);
    costs.disk.reset();
    costs.peer.reset();
    costs.host->memory = memory;
    const Schedule made = as_requested(kept, {.memory_limits = {5}, .home_way = "auto"}, costs).schedule;
    const std::vector<double> waiting = waiting_at_homes(made, Home::host, std::array{100.0});
    if (memory) {
      EXPECT_LE(std::accumulate(waiting.begin(), waiting.end(), 0.0), static_cast<double>(*memory));
    }
    return simulate(made, costs).makespan;
  };
  const double free = fitted(std::nullopt);
  EXPECT_EQ(fitted(100'000), free);
  EXPECT_GT(fitted(100), free);
  EXPECT_GE(fitted(0), fitted(100));
}

TEST(HomeRoom, IsInScheduleFiles) {
  const Schedule schedule = all_on_host("1f1b", 4, 8);
  const Costs costs = with_room(1000, 4);
  const std::string text = schedule_json(schedule, costs, simulate(schedule, costs)).dump();
  EXPECT_THAT(text, HasSubstr("\"memory\":1000"));
  EXPECT_EQ(schedule_from_json(text, "file").costs.host, costs.host);
}

}  // namespace
}  // namespace starpipe::plan
