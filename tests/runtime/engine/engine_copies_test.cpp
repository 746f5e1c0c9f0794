// SPDX-License-Identifier: Apache-2.0
// Stashes that are copied to a disk or another worker, and back. The session must have workers for copies:
// --copies=yes. Every test is collective.
#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/engine/engine_run.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/limited_schedule.hpp"
#include "support/network_schedules.hpp"
#include "support/networks.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

/// Runs a schedule that copies stashes, and compares it with the same schedule that keeps them.
void expect_same_as_kept(const Schedule& schedule, const Schedule& kept, const model::Network& network,
                         int steps) {
  ASSERT_EQ(plan::check(schedule).problem, "");
  const auto data = data_for(network);
  RuntimeConfig config = patient;
  config.stash_folder = ::testing::TempDir();
  const Outcome run = train(schedule, network, sgd, *data, steps, config);
  expect_all_jobs(run, schedule);
  expect_ready_after_producers(run, schedule);
  expect_transfers(run, schedule, network);
  expect_order(run, schedule);
  expect_same_bits(run, kept, network, sgd, *data);
  if (!is_root()) return;
  const std::vector<int> most = plan::stashes_in_order(schedule);
  for (std::size_t w = 0; w < most.size(); ++w)
    EXPECT_LE(run.workers[w].peak_stashes, most[w]) << "worker " << w;
}

TEST(Copies, NamedSchedules) {
  if (!session->copies()) GTEST_SKIP() << "runtime_engine_copies_* runs it";
  for (const NamedCase& c : named_cases(workers(), 6)) {
    for (const bool is_split : {false, true}) {
      const Schedule kept = is_split ? split(c.schedule) : c.schedule;
      if (kept.discipline() != Discipline::ordered) continue;
      SCOPED_TRACE(kept.name());
      expect_same_as_kept(kept.with_homes([](int, int) { return plan::Home::disk; }), kept, c.network, 2);
    }
  }
}

TEST(Copies, WithRecomputationAndStashesThatStay) {
  if (!session->copies()) GTEST_SKIP() << "runtime_engine_copies_* runs it";
  for (const NamedCase& c : named_cases(workers(), 6)) {
    if (c.schedule.discipline() != Discipline::ordered) continue;
    SCOPED_TRACE(c.schedule.name());
    const Schedule mixed = c.schedule.with_homes([](int stage, int microbatch) {
      return std::array{plan::Home::disk, plan::Home::none,
                        plan::Home::worker}[index((stage + microbatch) % 3)];
    });
    expect_same_as_kept(mixed, c.schedule, c.network, 2);
  }
}

TEST(Copies, ToOtherWorkers) {
  if (!session->copies()) GTEST_SKIP() << "runtime_engine_copies_* runs it";
  for (const NamedCase& c : named_cases(workers(), 6)) {
    for (const bool is_split : {false, true}) {
      const Schedule kept = is_split ? split(c.schedule) : c.schedule;
      if (kept.discipline() != Discipline::ordered) continue;
      SCOPED_TRACE(kept.name());
      const Schedule moved = kept.with_homes([&](int stage, int microbatch) {
        if (microbatch % 3 == 2) return plan::Home::disk;
        const int own = kept.compute(kept.forward(stage, microbatch));
        return plan::Home::at((own + 1 + microbatch) % workers());
      });
      expect_same_as_kept(moved, kept, c.network, 2);
    }
  }
}

/// Random graphs, w, n and homes. Each value of --gtest_random_seed gives 40 other cases, the same on all
/// ranks.
TEST(Copies, RandomSchedules) {
  if (!session->copies()) GTEST_SKIP() << "runtime_engine_copies_* runs it";
  plan::testing::Random random(3 + index(GTEST_FLAG_GET(random_seed)));
  int copied = 0;
  for (int round = 0; copied < rounds(40); ++round) {
    plan::ScheduleSpec spec = plan::testing::random_spec(
        random, {.max_workers = 1, .one_worker_a_stash = true, .copies = true, .sound_priority = 1});
    const Schedule drawn(spec);
    if (!drawn.copies()) continue;
    spec.workers = workers();
    spec.placement = [&](const plan::Job& job) {
      const int worker = (7 * job.stage + 3 * job.microbatch * (round % 2)) % workers();
      return plan::Placement{worker, worker};
    };
    spec.home = [&](int s, int b) {
      const plan::Home home = drawn.home(s, b);
      if (home == plan::Home::host) return plan::Home::disk;
      return home.peer() ? plan::Home::at((s + 2 * b) % workers()) : home;
    };
    const Schedule schedule(spec);
    if (!plan::check(schedule).ok()) continue;
    ++copied;
    SCOPED_TRACE(fmt::format("round {}", round));
    const Schedule kept = schedule.with_homes([](int, int) { return plan::Home::worker; });
    expect_same_as_kept(schedule, kept, dag_network(schedule.graph()), 1);
    if (HasFailure()) return;
  }
}

/// Random graphs, w and n, and a random limit below the stashes that the workers would hold. `auto` chooses
/// the homes. The seed is that of gtest, as above.
TEST(Copies, WithinTightLimits) {
  if (!session->copies()) GTEST_SKIP() << "runtime_engine_copies_* runs it";
  plan::testing::Random random(5 + index(GTEST_FLAG_GET(random_seed)));
  int fitted = 0;
  for (int round = 0; fitted < rounds(40); ++round) {
    plan::ScheduleSpec spec = plan::testing::random_spec(
        random, {.max_workers = 1, .one_worker_a_stash = true, .sound_priority = 1});
    spec.workers = workers();
    spec.placement = [&](const plan::Job& job) {
      const int worker = (7 * job.stage + 3 * job.microbatch * (round % 2)) % workers();
      return plan::Placement{worker, worker};
    };
    spec.discipline = Discipline::ordered;
    spec.memory_limits.clear();
    spec.home = nullptr;
    const Schedule kept(spec);
    if (!plan::check(kept).ok()) continue;
    const int most = std::ranges::max(plan::stashes_in_order(kept));
    if (most < 2) continue;
    const int limit = plan::testing::between(random, 1, most - 1);
    plan::Costs costs;
    costs.disk = plan::HomeLink{.link = {.alpha = 0.25 * plan::testing::between(random, 0, 8)}};
    std::optional<Schedule> schedule;
    try {
      schedule = plan::as_requested(kept, {.memory_limits = {limit}, .home_way = "auto"}, costs).schedule;
    } catch (const InputError&) {
      continue;  // no homes keep the limit
    }
    ++fitted;
    SCOPED_TRACE(fmt::format("round {}, limit {} of {}", round, limit, most));
    EXPECT_LE(std::ranges::max(plan::stashes_in_order(*schedule)), limit);
    expect_same_as_kept(*schedule, kept, dag_network(kept.graph()), 1);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace starpipe::runtime
