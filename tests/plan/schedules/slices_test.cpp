// SPDX-License-Identifier: Apache-2.0
// Slices of sequences: the edges between them, the orders of named schedules, and what workers send.
#include "starpipe/plan/registry/slices.hpp"

#include <algorithm>
#include <set>
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
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"
#include "support/schedules.hpp"

namespace starpipe::plan {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

Schedule sliced(const std::string& name, int workers, int microbatches, int slices) {
  return make_schedule(name, {.workers = workers, .microbatches = microbatches, .slices = slices});
}

/// The makespan in units of a pass of a whole micro-batch.
double makespan(const Schedule& schedule) { return simulate(schedule).makespan / schedule.slices(); }

std::vector<Job> preds(const Schedule& schedule, const Job& job) {
  std::vector<Job> found;
  schedule.for_each_pred(schedule.find(job).value(), [&](JobId id) { found.push_back(schedule.job(id)); });
  return found;
}

TEST(Slices, WaitForThoseBeforeAndAfter) {
  const Schedule schedule = sliced("gpipe", 2, 2, 3);
  EXPECT_EQ(schedule.microbatches(), 6);
  EXPECT_EQ(schedule.whole_microbatches(), 2);
  // Micro-batches 3 to 5 are the slices of the second one.
  EXPECT_TRUE(preds(schedule, {0, 3, Pass::F}).empty());
  EXPECT_THAT(preds(schedule, {1, 3, Pass::F}), UnorderedElementsAre(Job{0, 3, Pass::F}));
  EXPECT_THAT(preds(schedule, {1, 4, Pass::F}), UnorderedElementsAre(Job{0, 4, Pass::F}, Job{1, 3, Pass::F}));
  EXPECT_THAT(preds(schedule, {1, 5, Pass::BW}), UnorderedElementsAre(Job{1, 5, Pass::F}));
  EXPECT_THAT(preds(schedule, {0, 3, Pass::BW}),
              UnorderedElementsAre(Job{0, 3, Pass::F}, Job{1, 3, Pass::BW}, Job{0, 4, Pass::BW}));
}

TEST(Slices, SuccessorsAreTheInverse) {
  for (const char* name : {"1f1b", "zb-h1", "ddp"}) {
    const Schedule schedule = sliced(name, 2, 2, 3);
    std::multiset<std::pair<JobId, JobId>> before;
    std::multiset<std::pair<JobId, JobId>> after;
    for (const JobId id : schedule.order()) {
      schedule.for_each_pred(id, [&](JobId other) { before.emplace(other, id); });
      schedule.for_each_succ(id, [&](JobId other) { after.emplace(id, other); });
    }
    EXPECT_EQ(before, after) << name;
  }
}

// Sun et al., arXiv 2406.03488: K - 1 more slices in the warm-up, so the bubble is that of p - 1 slices.
TEST(Slices, OneF1BIsSeq1F1B) {
  for (const int workers : {1, 2, 3, 4, 8}) {
    for (const int microbatches : {1, 2, 8, 9}) {
      for (const int slices : {1, 2, 3, 4, 7}) {
        const Schedule schedule = sliced("1f1b", workers, microbatches, slices);
        const Timeline timeline = simulate(schedule);
        const int all = microbatches * slices;
        EXPECT_DOUBLE_EQ(timeline.makespan, 3.0 * (all + workers - 1));
        for (int w = 0; w < workers; ++w)
          EXPECT_EQ(timeline.peak_stashes[index(w)], std::min(all, workers - w + slices - 1))
              << "worker " << w << " of " << workers << ", " << microbatches << " x " << slices;
      }
    }
  }
}

TEST(Slices, EveryNamedScheduleTakesThem) {
  int made = 0;
  for (const ScheduleEntry& entry : schedule_entries()) {
    for (const int workers : {2, 4}) {
      const auto request = [&](int slices) {
        ScheduleRequest of{.workers = workers, .microbatches = 2 * workers, .slices = slices};
        if (entry.name == "lpp" || entry.name == "fslpp") of.groups = 2;
        return of;
      };
      const Schedule whole = make_schedule(entry.name, request(1));
      const bool in_groups = entry.name == "slimpipe";  // of as many slices as workers
      for (const int slices : {in_groups ? workers : 2, in_groups ? 2 * workers : 3}) {
        SCOPED_TRACE(entry.name + " on " + std::to_string(workers) + ", slices: " + std::to_string(slices));
        const Schedule schedule = make_schedule(entry.name, request(slices));
        ++made;
        EXPECT_EQ(check(schedule).problem, "");
        EXPECT_EQ(schedule.slices(), slices);
        EXPECT_EQ(schedule.microbatches(), 2 * workers * slices);
        EXPECT_LE(makespan(schedule), makespan(whole) + 1e-9);
        const int before = std::ranges::max(simulate(whole).peak_stashes);
        const int peak = std::ranges::max(simulate(schedule).peak_stashes);
        EXPECT_LE(peak, slices * before) << "a slice is 1/K of a stash";
      }
    }
  }
  EXPECT_GT(made, 80);
}

// SlimPipe: the first worker holds the K slices of all its v chunks and 2 (p - 1) more, and is idle for
// (p - 1) / v of the time of a slice.
TEST(Slices, SlimPipeHasItsMemoryAndBubble) {
  for (const int workers : {2, 3, 4, 8}) {
    for (const int chunks : {1, 2, 3}) {
      for (const int rounds : {1, 2}) {
        const int slices = rounds * workers;
        const Schedule schedule = make_schedule("slimpipe", {.workers = workers,
                                                             .microbatches = 3,
                                                             .slices = slices,
                                                             .graph = StageGraph::chain(chunks * workers)});
        const Timeline timeline = simulate(schedule);
        SCOPED_TRACE(std::to_string(workers) + " workers, " + std::to_string(chunks) + " chunks");
        EXPECT_EQ(check(schedule).problem, "");
        EXPECT_EQ(timeline.peak_stashes[0], slices * chunks + 2 * (workers - 1));
        EXPECT_DOUBLE_EQ(timeline.makespan, 3.0 * (3 * slices * chunks + workers - 1));
      }
    }
  }
  EXPECT_THAT(message_of([] { make_schedule("slimpipe", {.workers = 4, .microbatches = 2, .slices = 6}); }),
              HasSubstr("slices: slimpipe needs a multiple of the 4 workers, not 6"));
}

TEST(Slices, OneSliceChangesNothing) {
  for (const char* name : {"1f1b", "v-half", "chimera", "fsdp"})
    EXPECT_EQ(sliced(name, 4, 8, 1), named(name, 4, 8));
}

// The slices of one stage on several workers: worker k has slice k, gets the keys and values of the k slices
// before, and hands back the gradients of k slices.
TEST(Slices, OnSeveralWorkersSendKeysAndValues) {
  constexpr int slices = 4;
  constexpr std::uint64_t bytes = 100;
  ScheduleSpec spec = sliced("ddp", 1, 2, slices).spec();
  const Schedule one = sliced("ddp", 1, 2, slices);
  spec = one.spec();
  spec.workers = slices;
  spec.placement = [](const Job& job) { return Placement{0, job.microbatch % slices}; };
  const Schedule ring(spec);
  ASSERT_EQ(check(ring).problem, "");
  Costs costs;
  costs.sizes = {{.has_weights = false, .keys_values = bytes, .keys_values_gradient = 2 * bytes}};
  const std::vector<Transfers> received = count_transfers(ring, costs);
  for (int k = 0; k < slices; ++k) {
    const Transfers& to = received[index(k)];
    const auto earlier = static_cast<std::uint64_t>(k);
    EXPECT_EQ(to.keys_values, (Received{2 * earlier, 2 * earlier * bytes}));  // of two micro-batches
    // From the slice after: those of the slices 0 to k.
    const Received handed = {2, 2 * (earlier + 1) * 2 * bytes};
    EXPECT_EQ(to.keys_values_gradients, k + 1 < slices ? handed : Received{});
    EXPECT_EQ(to.activations, Received{});
  }
  costs.sizes.front().has_keys_values = false;
  for (const Transfers& to : count_transfers(ring, costs)) EXPECT_EQ(to.total(), Received{});
}

// On one worker: F 0, F 1, then B 1 and B 0, of one micro-batch of two slices.
TEST(Slices, KeysAndValuesCountAsMemory) {
  const Schedule schedule = sliced("gpipe", 1, 1, 2);
  Costs costs;
  costs.sizes = {{.stash = 1000, .keys_values = 10, .keys_values_gradient = 7}};
  // At B 1: both stashes, both keys and values, and the gradient of slice 0's that it hands on.
  EXPECT_EQ(simulate(schedule, costs).peak_stash_bytes.front(), 2U * 1000 + 2 * 10 + 7);
}

TEST(Slices, HaveCostsOfTheirOwn) {
  const Schedule schedule = sliced("gpipe", 1, 1, 2);
  Costs costs;
  costs.slices = 2;
  costs.durations = {{.F = 1, .B = 2, .W = 3}, {.F = 10, .B = 20, .W = 30}};
  const Timeline timeline = simulate(schedule, costs);
  EXPECT_EQ(timeline.makespan, 66);
  EXPECT_EQ(timeline.spans[schedule.forward(0, 1)].end, 11);
  EXPECT_EQ(timeline.spans[schedule.backward(0, 1)].end, 61);
  const Costs whole = costs_of_microbatches(costs);
  EXPECT_EQ(whole.durations.front(), (Durations{.F = 11, .B = 22, .W = 33}));
  costs.slices = 3;
  EXPECT_THAT(message_of([&] { simulate(schedule, costs); }), HasSubstr("costs of 3 slices"));
}

TEST(Slices, FilesKeepThem) {
  const Schedule schedule = sliced("zb-h1", 2, 2, 2);
  Costs costs;
  costs.slices = 2;
  costs.durations = {{1, 2, 3}, {2, 3, 4}, {3, 4, 5}, {4, 5, 6}};
  costs.sizes.assign(4, {.activation = 5, .keys_values = 3, .keys_values_gradient = 4});
  costs.sizes[2].has_keys_values = costs.sizes[3].has_keys_values = false;
  const std::string text = schedule_json(schedule, costs, simulate(schedule, costs), "").dump();
  const ImportedSchedule read = schedule_from_json(text, "s.json");
  EXPECT_EQ(read.schedule.slices(), 2);
  EXPECT_EQ(read.costs.slices, 2);
  EXPECT_EQ(read.costs.durations, costs.durations);
  for (int s = 0; s < 2; ++s) {
    EXPECT_EQ(read.costs.size(s, 1).keys_values, 3U);
    EXPECT_EQ(read.costs.size(s, 1).keys_values_gradient, 4U);
    EXPECT_EQ(read.costs.size(s, 1).has_keys_values, s == 0);
  }
  EXPECT_EQ(schedule_json(read.schedule, read.costs, simulate(read.schedule, read.costs), "").dump(), text);
}

TEST(Slices, Refusals) {
  const Schedule schedule = sliced("1f1b", 2, 2, 2);
  EXPECT_THAT(message_of([&] { static_cast<void>(schedule.with_recomputation()); }),
              HasSubstr("other homes"));
  ScheduleSpec spec = schedule.spec();
  spec.slices = 3;
  EXPECT_THAT(message_of([&] { Schedule other(spec); }),
              HasSubstr("4 micro-batches are not sequences of 3 slices"));
  EXPECT_THAT(check(schedule.with(Discipline::bounded, {4, 4})).problem, HasSubstr("slices"));
  EXPECT_THAT(message_of([&] { forward_passes(schedule, 3); }), HasSubstr("sequences of 2 slices"));
}

}  // namespace
}  // namespace starpipe::plan
