// SPDX-License-Identifier: Apache-2.0
#include "starpipe/plan/schedule/homes_to_fit.hpp"

#include <algorithm>
#include <bit>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
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

/// The largest memory of stashes of which some have no home, place by place.
double peak_of(const std::vector<StashWait>& stashes, unsigned dropped, std::size_t places) {
  double peak = 0;
  for (std::size_t place = 0; place < places; ++place) {
    double live = 0;
    for (std::size_t i = 0; i < stashes.size(); ++i) {
      const bool is_dropped = (dropped >> i & 1U) != 0;
      const std::size_t from = is_dropped ? stashes[i].backward : stashes[i].forward;
      live += from <= place && place <= stashes[i].last ? stashes[i].size : 0;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

/// The stashes of a worker that runs F, B and W (or BW) of some micro-batches in a random order.
std::vector<StashWait> random_waits(testing::Random& random, std::size_t& place) {
  const int count = testing::between(random, 1, 6);
  std::vector<StashWait> stashes(index(count));
  std::vector<int> next(index(count), 0);  // pass
  place = 0;
  for (int left = 3 * count; left > 0;) {
    const std::size_t i = index(testing::between(random, 0, count - 1));
    if (next[i] == 3) continue;
    const bool fused = next[i] == 1 && testing::chance(random, 0.3);
    if (next[i] == 0) stashes[i].forward = place;
    if (next[i] == 1) stashes[i].backward = stashes[i].last = place;
    if (next[i] == 2) stashes[i].last = place;
    left -= fused ? 2 : 1;
    next[i] += fused ? 2 : 1;
    ++place;
  }
  return stashes;
}

// Against all choices, for random orders of F, B and W.
TEST(DroppedToFit, AreTheFewest) {
  testing::Random random(3);
  int some = 0;
  int none_fits = 0;
  for (int round = 0; round < rounds(3000); ++round) {
    std::size_t place = 0;
    const std::vector<StashWait> stashes = random_waits(random, place);
    const int count = static_cast<int>(stashes.size());
    const double limit = testing::between(random, 1, 4);
    int fewest = count + 1;
    for (unsigned dropped = 0; dropped < 1U << index(count); ++dropped) {
      if (peak_of(stashes, dropped, place) <= limit) fewest = std::min(fewest, std::popcount(dropped));
    }
    const auto found = dropped_to_fit(stashes, limit);
    ASSERT_EQ(found.has_value(), fewest <= count) << round;
    none_fits += found ? 0 : 1;
    if (!found) continue;
    unsigned bits = 0;
    for (std::size_t i = 0; i < found->size(); ++i) bits |= (*found)[i] ? 1U << i : 0;
    ASSERT_LE(peak_of(stashes, bits, place), limit) << round;
    ASSERT_EQ(std::popcount(bits), fewest) << round;
    some += fewest > 0 ? 1 : 0;
  }
  EXPECT_GT(some, rounds(500));
  EXPECT_GT(none_fits, rounds(100));
}

// Copied stashes are away from O to L, and never earlier than the end of their F.
TEST(FatesToFit, KeepTheLimit) {
  testing::Random random(4);
  int copied = 0;
  int remade = 0;
  for (int round = 0; round < rounds(3000); ++round) {
    std::size_t places = 0;
    const std::vector<StashWait> stashes = random_waits(random, places);
    const double limit = testing::between(random, 2, 4);
    const auto fates = fates_to_fit(stashes, limit, testing::between(random, 0, 4) / 4.0);
    if (!fates) continue;
    for (std::size_t place = 0; place < places; ++place) {
      double live = 0;
      for (std::size_t i = 0; i < stashes.size(); ++i) {
        const auto [forward, backward, last, size] = stashes[i];
        const auto [kind, out_before, back_from] = (*fates)[i];
        const bool before = kind == StashFate::Kind::copied && forward <= place && place < out_before;
        const std::size_t from = kind == StashFate::Kind::kept     ? forward
                                 : kind == StashFate::Kind::remade ? backward
                                                                   : back_from;
        live += before || (from <= place && place <= last) ? size : 0;
      }
      ASSERT_LE(live, limit) << "round " << round << ", place " << place;
    }
    for (std::size_t i = 0; i < stashes.size(); ++i) {
      const StashFate& fate = (*fates)[i];
      remade += fate.kind == StashFate::Kind::remade ? 1 : 0;
      if (fate.kind != StashFate::Kind::copied) continue;
      ++copied;
      ASSERT_GT(fate.out_before, stashes[i].forward) << round;
      ASSERT_GE(fate.back_from, fate.out_before) << round;
      ASSERT_LE(fate.back_from, stashes[i].backward) << round;
    }
  }
  EXPECT_GT(copied, rounds(200));
  EXPECT_GT(remade, rounds(100));
}

TEST(HomesToFit, CopyWhatDoesNotFit) {
  for (const char* name : {"1f1b", "zb-h1", "gpipe", "interleaved-1f1b", "v-half", "zb-2p"}) {
    SCOPED_TRACE(name);
    const Schedule own = make_schedule(name, {.workers = 4, .microbatches = 8});
    const Schedule schedule = own.discipline() == Discipline::ordered
                                  ? own
                                  : ordered_as_simulated(own.with(Discipline::greedy), {});
    const int most = std::ranges::max(stashes_in_order(schedule));
    for (int limit = 2; limit <= most; ++limit) {
      const std::vector<int> limits(4, limit);
      for (const double remade : {0.0, 0.5}) {
        std::optional<Schedule> made;
        try {
          made = with_homes_to_fit(schedule, limits, {.copies = Home::host, .remade = remade});
        } catch (const InputError&) {  // W that wait for others hold more
          EXPECT_LT(limit, most);
          continue;
        }
        EXPECT_EQ(check(made->with(Discipline::ordered, limits)).problem, "") << limit;
        EXPECT_EQ(made->copies() || made->recomputes(), limit < most);
        if (remade == 0) {
          EXPECT_FALSE(made->recomputes());
        }
      }
    }
  }
}

// A copy that fits beside the passes costs nothing. One that is far too slow is never chosen.
TEST(HomesToFit, TakeWhatCostsLeast) {
  const Schedule schedule = make_schedule("1f1b", {.workers = 8, .microbatches = 32});
  const auto makespan = [&](std::optional<double> copy) {
    Costs costs{.durations = {{1, 1, 1}}};
    if (copy) costs.host = HomeLink{.link = {.alpha = *copy}};
    const LimitedSchedule made = as_requested(schedule, {.memory_limits = {4}, .home_way = "auto"}, costs);
    EXPECT_EQ(check(made.schedule).problem, "");
    if (copy == 0.5) {
      EXPECT_TRUE(made.schedule.copies());
      EXPECT_FALSE(made.schedule.recomputes());
    }
    if (copy == 1000) {
      EXPECT_FALSE(made.schedule.copies());
    }
    return simulate(made.schedule, costs).makespan;
  };
  const double kept = simulate(schedule, {.durations = {{1, 1, 1}}}).makespan;
  EXPECT_EQ(makespan(0.5), kept);
  EXPECT_GT(makespan(std::nullopt), kept);
  EXPECT_EQ(makespan(1000), makespan(std::nullopt));
  EXPECT_LE(makespan(2), makespan(std::nullopt));
}

// 1F1B on four workers: worker 0 holds four stashes. With room for two, every second F is computed again
// while memory is full.
TEST(HomesToFit, KeepTheOrderAndTheLimit) {
  for (const char* name : {"1f1b", "zb-h1", "gpipe", "interleaved-1f1b", "v-half", "zb-2p", "chimera"}) {
    SCOPED_TRACE(name);
    const Schedule own = make_schedule(name, {.workers = 4, .microbatches = 8});
    const Schedule schedule = own.discipline() == Discipline::ordered
                                  ? own
                                  : ordered_as_simulated(own.with(Discipline::greedy), {});
    const int most = std::ranges::max(stashes_in_order(schedule));
    int before = schedule.stages() * schedule.microbatches() + 1;
    for (int limit = 1; limit <= most; ++limit) {
      const std::vector<int> limits(4, limit);
      std::optional<Schedule> made;
      try {
        made = with_homes_to_fit(schedule, limits);
      } catch (const InputError&) {  // W that wait for others hold more
        EXPECT_LT(limit, most);
        continue;
      }
      EXPECT_EQ(check(made->with(Discipline::ordered, limits)).problem, "");
      EXPECT_LE(std::ranges::max(simulate(*made, {}).peak_stashes), limit);
      const int remade = static_cast<int>(
          std::ranges::count_if(made->order(), [&](JobId id) { return made->job(id).pass == Pass::R; }));
      EXPECT_LE(remade, before);
      before = remade;
      for (int w = 0; w < 4; ++w) {
        std::vector<Job> order;
        for (const JobId id : made->order(w)) {
          if (made->job(id).pass != Pass::R) order.push_back(made->job(id));
        }
        std::vector<Job> expected;
        for (const JobId id : schedule.order(w)) expected.push_back(schedule.job(id));
        EXPECT_EQ(order, expected);
      }
    }
    EXPECT_EQ(before, 0) << "nothing is made again where all stashes fit";
  }
  const Schedule one_f_one_b = make_schedule("1f1b", {.workers = 4, .microbatches = 6});
  const Schedule made = with_homes_to_fit(one_f_one_b, std::vector{2, 2, 2, 2});
  EXPECT_THAT(stashes_in_order(made), ElementsAre(2, 2, 2, 1));
  EXPECT_EQ(made, with_homes_to_fit(made, std::vector{2, 2, 2, 2})) << "what R makes already stays";
}

// The order of a bounded schedule keeps its own limit without R.
TEST(HomesToFit, OfABoundedScheduleNeedROnlyForASmallerLimit) {
  const Schedule bounded =
      make_schedule("gpipe", {.workers = 2, .microbatches = 4}).with(Discipline::bounded, {2, 2});
  const auto remade = [&](int limit) {
    const Schedule made = as_requested(bounded, {.memory_limits = {limit}, .home_way = "auto"}, {}).schedule;
    EXPECT_EQ(check(made).problem, "");
    return made.recomputes();
  };
  EXPECT_FALSE(remade(4));
  EXPECT_FALSE(remade(2));
  EXPECT_TRUE(remade(1));
}

TEST(HomesToFit, RefuseWhatRecomputationCannotMend) {
  const Schedule host = make_schedule("1f1b", {.workers = 2, .microbatches = 4}).with_homes([](int, int) {
    return Home::host;
  });
  EXPECT_THAT(
      [&] {
        with_homes_to_fit(host, std::vector{2, 2});
      },
      ThrowsMessage<InputError>(HasSubstr("home: auto does not apply where stashes are copied")));
  const Schedule zb = make_schedule("zb-h2", {.workers = 4, .microbatches = 8});
  EXPECT_THAT(
      [&] {
        with_homes_to_fit(zb, std::vector{1, 1, 1, 1});
      },
      ThrowsMessage<InputError>(HasSubstr("uses more stashes at once than its memory limit of 1")));
}

}  // namespace
}  // namespace starpipe::plan
