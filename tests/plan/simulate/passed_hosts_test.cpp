// SPDX-License-Identifier: Apache-2.0
// Messages between ranks that pass the main memory of their hosts, beside copies of stashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starpipe/base/error.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/schedule.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

double start_of(const Schedule& schedule, const Timeline& timeline, const Job& job) {
  return timeline.spans[*schedule.find(job)].start;
}

/// Stages on workers that are ranks of their own. A message of 10 bytes takes 1 + 1 to a host, 2 on the
/// network and 1 + 1 from a host. A copy of a stash of 40 bytes takes 1 + 4.
Costs with_hosts() {
  return {.durations = {{1, 1, 0}},
          .sizes = {{.activation = 10, .gradient = 10, .stash = 40}},
          .links = Link{.alpha = 2},
          .host = HomeLink{.link = {.alpha = 1, .beta = 0.1}},
          .messages_pass_hosts = true};
}

TEST(PassedHosts, TakeTimeAtBothEnds) {
  const Schedule schedule = make_schedule("gpipe", {.workers = 2, .microbatches = 1});
  const Timeline timeline = simulate(schedule, with_hosts());
  EXPECT_EQ(start_of(schedule, timeline, {1, 0, Pass::F}), 1 + 2 + 2 + 2);
  EXPECT_EQ(start_of(schedule, timeline, {0, 0, Pass::BW}), 7 + 1 + 1 + 2 + 2 + 2);
}

TEST(PassedHosts, NeedTheirLink) {
  Costs costs = with_hosts();
  costs.host.reset();
  EXPECT_THAT([&] { simulate(make_schedule("gpipe", {.workers = 2, .microbatches = 1}), costs); },
              ::testing::ThrowsMessage<InputError>(::testing::HasSubstr("messages_pass_hosts: needs")));
}

TEST(PassedHosts, AreNotPassedWithinARank) {
  const Schedule schedule = make_schedule("gpipe", {.workers = 2, .microbatches = 1});
  Costs costs = with_hosts();
  costs.workers_of_rank = 2;
  EXPECT_EQ(start_of(schedule, simulate(schedule, costs), {1, 0, Pass::F}), 1 + 2);
}

// F(0,0) ends at 1. Its message passes the host until 3, and O(0,0) from 3 to 8. The message of F(0,1), which
// ends at 2, waits for that copy, and then O(0,1) for the message.
TEST(PassedHosts, AreSharedWithCopiesInOrder) {
  const Schedule schedule =
      make_schedule("gpipe", {.workers = 2, .microbatches = 2}).with_homes([](int s, int) {
        return s == 0 ? Home::host : Home::worker;
      });
  const Timeline timeline = simulate(schedule, with_hosts());
  const auto end_of = [&](const Job& job) { return timeline.spans[*schedule.find(job)].end; };
  EXPECT_EQ(start_of(schedule, timeline, {1, 0, Pass::F}), 3 + 2 + 2);
  EXPECT_EQ(end_of({0, 0, Pass::O}), 8);
  EXPECT_EQ(start_of(schedule, timeline, {1, 1, Pass::F}), 10 + 2 + 2);
  EXPECT_EQ(end_of({0, 1, Pass::O}), 15);
}

// The weights of stage 0 go to the workers 1 and 2, and pass the link between worker 0 and its host once.
TEST(PassedHosts, SendADatumToTheHostOnce) {
  const Schedule schedule(
      {.name = "one stage",
       .microbatches = 2,
       .workers = 3,
       .placement = [](const Job& job) { return Placement{.weights = 0, .compute = 1 + job.microbatch}; },
       .priority = [](const Job& job) { return job.pass == Pass::F ? 0 : 1; }});
  Costs costs = with_hosts();
  costs.sizes = {{.weights = 10}};
  const Timeline timeline = simulate(schedule, costs);
  for (const int b : {0, 1}) EXPECT_EQ(start_of(schedule, timeline, {0, b, Pass::F}), 2 + 2 + 2);
}

/// Hosts in no time change nothing, and slow ones let no job begin sooner than its inputs can be there.
TEST(PassedHosts, DelayEveryMessage) {
  testing::Random random(31);
  int delayed = 0;
  for (int round = 0; round < rounds(500); ++round) {
    const Schedule schedule = testing::sound_schedule(random, Discipline::ordered);
    Costs costs = testing::random_costs(random, schedule.stages());
    costs.prefetch = true;
    costs.workers_of_rank = 1;
    costs.links = Link{.alpha = 0.5, .beta = 0.001};
    costs.host = costs.disk = costs.peer = HomeLink{};
    SCOPED_TRACE(round);
    const Timeline plain = simulate(schedule, costs);
    costs.messages_pass_hosts = true;
    EXPECT_EQ(simulate(schedule, costs).makespan, plain.makespan);
    constexpr double latency = 0.25;
    costs.host = HomeLink{.link = {.alpha = latency}};
    const Timeline slow = simulate(schedule, costs);
    for (const JobId id : schedule.order()) {
      const Job job = schedule.job(id);
      if (job.pass != Pass::F) continue;
      for (const int before : schedule.graph().pred(job.stage)) {
        const JobId sender = schedule.forward(before, job.microbatch);
        if (schedule.compute(sender) == schedule.compute(id)) continue;
        ++delayed;
        EXPECT_GE(slow.spans[id].start, slow.spans[sender].end + costs.link(0, 1).alpha + 2 * latency - 1e-9);
      }
    }
  }
  EXPECT_GT(delayed, rounds(500));
}

}  // namespace
}  // namespace starpipe::plan
