// SPDX-License-Identifier: Apache-2.0
// simulate, evaluate and count_transfers against the slow reference, and against properties that need no
// reference at all, on random schedules and costs.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/reductions.hpp"
#include "plan/slow_reference.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::plan {
namespace {

using testing::Case;

/// A schedule that `check` accepts under `discipline`.
Case random_case(testing::Random& random, Discipline discipline) {
  Schedule schedule =
      testing::sound_schedule(random, discipline, discipline == Discipline::ordered ? 0.8 : 0.4);
  Costs costs = testing::random_costs(random, schedule.stages());
  if (testing::chance(random, 0.3)) costs.links = testing::random_links(random, {Sharing::none});
  return {std::move(schedule), std::move(costs)};
}

std::string describe(const Case& c, const std::vector<Span>& spans) {
  std::ostringstream out;
  out << to_string(c.schedule.discipline()) << " S=" << c.schedule.stages()
      << " B=" << c.schedule.microbatches() << " W=" << c.schedule.workers()
      << " links=" << c.costs.links.levels().size() << " prefetch=" << c.costs.prefetch
      << " recompute=" << c.schedule.recomputes() << "\n";
  for (const JobId id : c.schedule.order()) {
    out << to_string(c.schedule.job(id)) << " on " << c.schedule.compute(id) << ": " << spans[id].start
        << ".." << spans[id].end << "\n";
  }
  return out.str();
}

class Simulate : public ::testing::TestWithParam<Discipline> {
 protected:
  template <class Test>
  void each(std::uint64_t seed, int all, Test test) {
    testing::Random random(seed * 10 + static_cast<std::uint64_t>(GetParam()));
    for (int round = 0; round < rounds(all) && !HasFailure(); ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      test(random_case(random, GetParam()), random);
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Disciplines, Simulate,
                         ::testing::Values(Discipline::greedy, Discipline::bounded, Discipline::ordered),
                         [](const auto& parameter) { return std::string(to_string(parameter.param)); });

TEST_P(Simulate, EqualsTheSlowReference) {
  each(20, 1200, [](const Case& c, testing::Random&) {
    const Timeline timeline = simulate(c.schedule, c.costs);
    const auto slow = testing::slow_simulate(c.schedule, c.costs);
    ASSERT_TRUE(slow.finished);
    for (const JobId id : c.schedule.order()) {
      ASSERT_EQ(timeline.spans[id].start, slow.spans[id].start) << to_string(c.schedule.job(id)) << "\n"
                                                                << describe(c, slow.spans);
      ASSERT_EQ(timeline.spans[id].end, slow.spans[id].end) << describe(c, slow.spans);
    }
    ASSERT_EQ(simulated_makespan(c.schedule, c.costs), timeline.makespan);
  });
}

TEST_P(Simulate, KeepsEveryDependencyWithItsTransfer) {
  each(21, 1200, [](const Case& c, testing::Random&) {
    const Timeline timeline = simulate(c.schedule, c.costs);
    for (const JobId id : c.schedule.order()) {
      const Span& span = timeline.spans[id];
      ASSERT_GE(span.start, testing::arrival(c.schedule, c.costs, timeline.spans, id))
          << to_string(c.schedule.job(id)) << "\n"
          << describe(c, timeline.spans);
      ASSERT_EQ(span.end - span.start, testing::duration(c.schedule, c.costs, id));
    }
  });
}

TEST_P(Simulate, RunsOneJobAtATimeOnAWorker) {
  each(22, 1200, [](const Case& c, testing::Random&) {
    const Timeline timeline = simulate(c.schedule, c.costs);
    for (int w = 0; w < c.schedule.workers(); ++w) {
      const auto mine = c.schedule.order(w);
      for (const JobId a : mine) {
        for (const JobId b : mine) {
          if (a == b) continue;
          const Span& x = timeline.spans[a];
          const Span& y = timeline.spans[b];
          ASSERT_LE(std::min(x.end, y.end) - std::max(x.start, y.start), 0) << describe(c, timeline.spans);
        }
      }
    }
  });
}

/// Holds only when every duration is above zero and inputs are fetched in advance. The spans then tell which
/// jobs were ready when a worker picked.
TEST_P(Simulate, NeverIdlesNorPassesOverAReadyJob) {
  if (GetParam() == Discipline::bounded) GTEST_SKIP() << "a refusal is a reason to idle; see the reference";
  const bool ordered = GetParam() == Discipline::ordered;
  each(23, 1200, [&](Case c, testing::Random&) {
    c.costs.prefetch = true;
    for (Durations& d : c.costs.durations) d = {d.F + 0.25, d.B + 0.25, d.W + 0.25};
    const Timeline timeline = simulate(c.schedule, c.costs);
    const auto& spans = timeline.spans;
    for (int w = 0; w < c.schedule.workers(); ++w) {
      const auto mine = c.schedule.order(w);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        const double ready = testing::arrival(c.schedule, c.costs, spans, mine[i]);
        if (ordered) {
          const double free = i == 0 ? 0 : spans[mine[i - 1]].end;
          ASSERT_EQ(spans[mine[i]].start, std::max(free, ready)) << describe(c, spans);
          continue;
        }
        double busy_meanwhile = 0;
        for (const JobId other : mine) {
          busy_meanwhile += std::max(
              0.0, std::min(spans[other].end, spans[mine[i]].start) - std::max(spans[other].start, ready));
          if (spans[other].start >= ready && spans[other].start < spans[mine[i]].start) {
            ASSERT_LT(c.schedule.turn(other), c.schedule.turn(mine[i])) << describe(c, spans);
          }
        }
        ASSERT_EQ(busy_meanwhile, spans[mine[i]].start - ready) << describe(c, spans);
      }
    }
  });
}

TEST_P(Simulate, RunsEachWorkersJobsInOrderWhenOrdered) {
  if (GetParam() != Discipline::ordered) GTEST_SKIP();
  each(24, 1000, [](const Case& c, testing::Random&) {
    const Timeline timeline = simulate(c.schedule, c.costs);
    for (int w = 0; w < c.schedule.workers(); ++w) {
      const auto mine = c.schedule.order(w);
      for (std::size_t i = 1; i < mine.size(); ++i) {
        ASSERT_GE(timeline.spans[mine[i]].start, timeline.spans[mine[i - 1]].end);
      }
    }
  });
}

TEST_P(Simulate, KeepsTheLimitsWhenBounded) {
  if (GetParam() != Discipline::bounded) GTEST_SKIP();
  int tight = 0;
  each(25, 1500, [&](const Case& c, testing::Random&) {
    const Timeline timeline = simulate(c.schedule, c.costs);
    for (int w = 0; w < c.schedule.workers(); ++w) {
      const int peak = timeline.peak_stashes[index(w)];
      ASSERT_LE(peak, c.schedule.memory_limits()[index(w)]) << describe(c, timeline.spans);
    }
    const auto free = simulate(c.schedule.with(Discipline::greedy), c.costs);
    tight += free.peak_stashes != timeline.peak_stashes ? 1 : 0;
  });
  EXPECT_GT(tight, rounds(200)) << "the limits hardly ever mattered";
}

TEST_P(Simulate, IsDeterministic) {
  each(26, 50, [](const Case& c, testing::Random&) {
    const Timeline a = simulate(c.schedule, c.costs);
    const Timeline b = simulate(c.schedule, c.costs);
    for (const JobId id : c.schedule.order()) {
      ASSERT_EQ(a.spans[id].start, b.spans[id].start);
      ASSERT_EQ(a.spans[id].end, b.spans[id].end);
    }
  });
}

/// Between two moments at which something starts or ends, memory is what `slow_memory_at` says. Jobs without
/// length may hold more for a moment, but never more than the order of n allows.
void expect_peaks_with_copies(const Case& c, const Timeline& timeline, int worker) {
  std::vector<double> times;
  bool all_last = true;
  for (const JobId id : c.schedule.order()) {
    const Span& span = timeline.spans[id];
    times.insert(times.end(), {span.start, span.end});
    all_last = all_last && span.end > span.start;
  }
  std::ranges::sort(times);
  testing::SlowMemory peak;
  for (std::size_t i = 1; i < times.size(); ++i) {
    if (times[i] == times[i - 1]) continue;
    const auto now =
        testing::slow_memory_at(c.schedule, c.costs, timeline.spans, worker, (times[i] + times[i - 1]) / 2);
    peak.stashes = std::max(peak.stashes, now.stashes);
    peak.bytes = std::max(peak.bytes, now.bytes);
  }
  const int stashes = timeline.peak_stashes.at(index(worker));
  const std::uint64_t bytes = timeline.peak_stash_bytes.at(index(worker));
  EXPECT_GE(stashes, peak.stashes) << "worker " << worker << "\n" << describe(c, timeline.spans);
  EXPECT_GE(bytes, peak.bytes) << "worker " << worker << "\n" << describe(c, timeline.spans);
  EXPECT_LE(stashes, stashes_in_order(c.schedule).at(index(worker))) << describe(c, timeline.spans);
  if (!all_last) return;
  EXPECT_EQ(stashes, peak.stashes) << "worker " << worker << "\n" << describe(c, timeline.spans);
  EXPECT_EQ(bytes, peak.bytes) << "worker " << worker << "\n" << describe(c, timeline.spans);
}

void expect_metrics(const Case& c, const Timeline& timeline) {
  const auto& spans = timeline.spans;
  double first = 1e300, last = -1e300, busy = 0, device_span = 0, max_busy = 0;
  const auto copies = [&](JobId id) { return is_copy(c.schedule.job(id).pass); };
  for (const JobId id : c.schedule.order()) {
    if (copies(id)) continue;
    first = std::min(first, spans[id].start);
    last = std::max(last, spans[id].end);
  }
  for (int w = 0; w < c.schedule.workers(); ++w) {
    double mine = 0, from = 1e300, to = -1e300;
    for (const JobId id : c.schedule.order()) {
      if (c.schedule.compute(id) != w || copies(id)) continue;
      mine += spans[id].end - spans[id].start;
      from = std::min(from, spans[id].start);
      to = std::max(to, spans[id].end);
    }
    EXPECT_EQ(timeline.busy.at(index(w)), mine);
    busy += mine;
    max_busy = std::max(max_busy, mine);
    device_span = std::max(device_span, to - from);
    testing::SlowMemory peak;
    const std::vector<JobId>& row = timeline.order.at(index(w));
    ASSERT_TRUE(std::ranges::is_sorted(row, {}, [&](JobId id) { return spans[id].start; }));
    ASSERT_EQ(std::set<JobId>(row.begin(), row.end()).size(), c.schedule.order(w).size());
    if (c.schedule.copies()) {
      expect_peaks_with_copies(c, timeline, w);
      continue;
    }
    for (int place = 0; place < static_cast<int>(row.size()); ++place) {
      const auto now = testing::slow_memory(c.schedule, c.costs, row, w, place);
      peak.stashes = std::max(peak.stashes, now.stashes);
      peak.bytes = std::max(peak.bytes, now.bytes);
    }
    EXPECT_EQ(timeline.peak_stashes.at(index(w)), peak.stashes) << "worker " << w << "\n"
                                                                << describe(c, spans);
    EXPECT_EQ(timeline.peak_stash_bytes.at(index(w)), peak.bytes) << "worker " << w << "\n"
                                                                  << describe(c, spans);
  }
  EXPECT_EQ(timeline.makespan, last - first);
  EXPECT_EQ(timeline.device_span, device_span);
  if (last > first) {
    EXPECT_DOUBLE_EQ(timeline.bubble_fraction, 1 - busy / (c.schedule.workers() * (last - first)));
    double again = 0;
    for (const JobId id : c.schedule.order())
      again += c.schedule.job(id).pass == Pass::R ? spans[id].end - spans[id].start : 0;
    EXPECT_DOUBLE_EQ(timeline.recomputed_fraction, again / (c.schedule.workers() * (last - first)));
  }
  if (device_span > 0) {
    EXPECT_DOUBLE_EQ(timeline.device_bubble_fraction, 1 - max_busy / device_span);
  }
  EXPECT_TRUE(std::isfinite(timeline.bubble_fraction)) << describe(c, spans);
  EXPECT_TRUE(std::isfinite(timeline.device_bubble_fraction)) << describe(c, spans);
  EXPECT_EQ(timeline.received, count_transfers(c.schedule, c.costs));
}

TEST_P(Simulate, MetricsEqualBruteForce) {
  each(27, 600, [](const Case& c, testing::Random&) { expect_metrics(c, simulate(c.schedule, c.costs)); });
}

/// Spans as a measurement gives them: feasible, but later than they need to be and not from 0.
TEST_P(Simulate, MetricsOfMeasuredSpansEqualBruteForce) {
  each(28, 600, [](const Case& c, testing::Random& random) {
    std::vector<Span> spans(c.schedule.id_count());
    std::vector<std::vector<JobId>> rows(index(c.schedule.workers()));
    std::vector<double> free(index(c.schedule.workers()), testing::between(random, 0, 20) / 4.0);
    for (const JobId id : topological_order(c.schedule)) {
      const bool copies =
          is_copy(c.schedule.job(id).pass);  // they wait for the copy before, see for_each_pred
      double& mine = free[index(c.schedule.compute(id))];
      double start = copies ? 0 : mine;
      c.schedule.for_each_pred(id, [&](JobId before) { start = std::max(start, spans[before].end); });
      if (testing::chance(random, 0.5)) start += testing::between(random, 0, 4) / 4.0;
      spans[id] = {start, start + testing::between(random, 0, 6) / 4.0};
      if (copies) continue;
      mine = spans[id].end;
      rows[index(c.schedule.compute(id))].push_back(id);
    }
    expect_metrics(c, evaluate(c.schedule, c.costs, spans, rows));
  });
}

/// Peaks follow from the order of the jobs, also where passes take no time.
TEST(Peaks, DoNotDependOnTheLengthOfPasses) {
  const StageSizes sizes{.activation = 1, .gradient = 1, .stash = 100, .gradient_stash = 7};
  for (const ScheduleEntry& entry : schedule_entries()) {
    ScheduleRequest request{.workers = 4, .microbatches = 8};
    if (entry.name == "lpp" || entry.name == "fslpp") request.groups = 2;
    const Schedule schedule = make_schedule(entry.name, request);
    if (schedule.discipline() != Discipline::ordered) continue;
    SCOPED_TRACE(entry.name);
    const Timeline expected = simulate(schedule, {.durations = {{1, 2, 1}}, .sizes = {sizes}});
    EXPECT_EQ(expected.peak_stashes, stashes_in_order(schedule));
    for (const Durations& times : {Durations{0, 0, 0}, Durations{0, 1, 1}, Durations{1, 0, 0}}) {
      const Timeline timeline = simulate(schedule, {.durations = {times}, .sizes = {sizes}});
      EXPECT_EQ(timeline.peak_stashes, expected.peak_stashes);
      EXPECT_EQ(timeline.peak_stash_bytes, expected.peak_stash_bytes);
    }
  }
}

TEST_P(Simulate, TransfersEqualBruteForce) {
  each(29, 1500, [](const Case& c, testing::Random&) {
    const auto expected = testing::slow_transfers(c.schedule, c.costs);
    const auto counted = count_transfers(c.schedule, c.costs);
    std::vector<Received> reductions(expected.size());
    for (int s = 0; s < c.schedule.stages(); ++s) {
      const auto weights = c.costs.sizes[c.costs.sizes.size() == 1 ? 0 : index(s)].weights;
      for (const ReductionStep& step : reduction_plan(c.schedule, s, weights)) {
        Received& here = reductions.at(index(step.into));
        ++here.count;
        here.bytes += step.bytes;
      }
    }
    ASSERT_EQ(counted.size(), expected.size());
    for (std::size_t w = 0; w < expected.size(); ++w) {
      EXPECT_EQ(counted[w].activations, expected[w].activations) << "worker " << w;
      EXPECT_EQ(counted[w].stashes, expected[w].stashes) << "worker " << w;
      EXPECT_EQ(counted[w].gradients, expected[w].gradients) << "worker " << w;
      EXPECT_EQ(counted[w].weights, expected[w].weights) << "worker " << w;
      EXPECT_EQ(counted[w].weight_gradients, reductions[w]) << "worker " << w;
    }
  });
}

TEST_P(Simulate, TrafficAddsUpToWhatWorkersReceive) {
  each(31, 800, [](const Case& c, testing::Random&) {
    std::vector<Received> expected;
    for (const Transfers& to : count_transfers(c.schedule, c.costs)) {
      Received& all = expected.emplace_back();
      for (const Received& kind :
           {to.activations, to.stashes, to.gradients, to.weights, to.weight_gradients}) {
        all.count += kind.count;
        all.bytes += kind.bytes;
      }
    }
    std::vector<Received> sums(expected.size());
    std::pair<int, int> last{-1, -1};
    for (const Traffic& pair : count_traffic(c.schedule, c.costs)) {
      EXPECT_NE(pair.from, pair.to);
      EXPECT_LT(last, std::pair(pair.from, pair.to)) << "sorted, no pair twice";
      last = {pair.from, pair.to};
      sums.at(index(pair.to)).count += pair.sent.count;
      sums.at(index(pair.to)).bytes += pair.sent.bytes;
    }
    EXPECT_EQ(sums, expected);
  });
}

TEST(Flows, SayWhoSends) {
  // A chain of three stages: activations go forward, gradients come back.
  Costs costs;
  costs.sizes = {{.activation = 10, .gradient = 7}};
  const Schedule chain = make_schedule("1f1b", {.workers = 3, .microbatches = 4});
  EXPECT_THAT(count_traffic(chain, costs),
              ::testing::ElementsAre(Traffic{0, 1, {4, 40}}, Traffic{1, 0, {4, 28}}, Traffic{1, 2, {4, 40}},
                                     Traffic{2, 1, {4, 28}}));
  // Weights come from their holder (FSDP: stage s is held by worker s), their gradients go to it.
  costs.sizes = {{.weights = 100}};
  const Schedule sharded = make_schedule("fsdp", {.workers = 2, .microbatches = 2});
  EXPECT_THAT(count_traffic(sharded, costs),
              ::testing::ElementsAre(Traffic{0, 1, {2, 200}}, Traffic{1, 0, {2, 200}}));
}

/// The sum of a part of the gradient: how it was added up, and in how many additions one after the other.
struct PartialSum {
  std::string text;
  int depth = 0;

  /// Which of the two comes first does not change a bit.
  [[nodiscard]] PartialSum plus(const PartialSum& other) const {
    if (text.empty() || other.text.empty()) return text.empty() ? other : *this;
    return {"(" + std::min(text, other.text) + "+" + std::max(text, other.text) + ")",
            std::max(depth, other.depth) + 1};
  }
};

/// Adds up a binary tree of these leaves.
PartialSum tree_sum(std::vector<PartialSum> leaves) {
  for (std::size_t stride = 1; stride < leaves.size(); stride *= 2) {
    for (std::size_t i = 0; i + stride < leaves.size(); i += 2 * stride)
      leaves[i] = leaves[i].plus(leaves[i + stride]);
  }
  return leaves.front();
}

/// Runs the plan on sums as text: in the end every holder has the sum of one tree, whose first leaf is the
/// first holder. Every part of the gradient is added up in the same order, and nothing is sent that is not
/// needed.
TEST_P(Simulate, ReductionAddsUpOneTreeForEachHolder) {
  each(30, 800, [](const Case& c, testing::Random& random) {
    for (int s = 0; s < c.schedule.stages(); ++s) {
      std::set<int> contributors, holders;
      for (const JobId id : c.schedule.order()) {
        const Job j = c.schedule.job(id);
        if (j.stage != s) continue;
        holders.insert(c.schedule.placement(id).weights);
        if (j.pass == Pass::W || j.pass == Pass::BW) contributors.insert(c.schedule.compute(id));
      }
      EXPECT_THAT(weight_holders(c.schedule, s), ::testing::ElementsAreArray(holders));
      EXPECT_THAT(gradient_workers(c.schedule, s), ::testing::ElementsAreArray(contributors));

      const int root = *holders.begin();
      std::vector<PartialSum> leaves(1);
      if (contributors.contains(root)) leaves[0].text = std::to_string(root);
      for (const int w : contributors) {
        if (w != root) leaves.push_back({std::to_string(w)});
      }
      const std::string expected = tree_sum(leaves).text;

      const auto bytes = static_cast<std::uint64_t>(testing::between(random, 1, 40));
      const auto plan = reduction_plan(c.schedule, s, bytes);
      for (std::uint64_t byte = 0; byte < bytes; ++byte) {
        std::map<int, PartialSum> sums;
        for (const int w : contributors) sums[w].text = std::to_string(w);
        std::size_t additions = 0;
        std::size_t copies = 0;
        int round = 0;
        for (const ReductionStep& step : plan) {
          EXPECT_EQ(step.stage, s);
          EXPECT_NE(step.from, step.into);
          EXPECT_GE(step.round, round);
          round = step.round;
          if (byte < step.first || byte >= step.first + step.bytes) continue;
          ++(step.finished ? copies : additions);
          sums[step.into] = step.finished ? sums[step.from] : sums[step.into].plus(sums[step.from]);
        }
        for (const int h : holders) EXPECT_EQ(sums[h].text, expected) << "holder " << h;
        EXPECT_EQ(additions, leaves.size() - 1) << "a move that brings nothing";
        EXPECT_EQ(copies, holders.size() - 1);
      }
    }
  });
}

// Jobs of no length included, of which many start at the same time.
TEST(OrderedAsSimulated, KeepsTheTimesAndTheLimits) {
  testing::Random random(20);
  for (int run = 0; run < rounds(3000); ++run) {
    const Discipline discipline = run % 2 == 0 ? Discipline::bounded : Discipline::greedy;
    const Case c = random_case(random, discipline);
    const std::vector<Span> spans = simulate(c.schedule, c.costs).spans;
    const Schedule decided = ordered_as_simulated(c.schedule, c.costs);
    SCOPED_TRACE(::testing::Message() << "run " << run << "\n" << describe(c, spans));
    ASSERT_EQ(decided.discipline(), Discipline::ordered);
    ASSERT_EQ(check(decided).problem, "");
    const std::vector<Span> again = simulate(decided, c.costs).spans;
    for (const JobId id : c.schedule.order()) {
      ASSERT_EQ(decided.placement(id).compute, c.schedule.placement(id).compute);
      ASSERT_EQ(decided.placement(id).weights, c.schedule.placement(id).weights);
      ASSERT_EQ(again[id].start, spans[id].start) << to_string(c.schedule.job(id));
      ASSERT_EQ(again[id].end, spans[id].end) << to_string(c.schedule.job(id));
    }
  }
}

}  // namespace
}  // namespace starpipe::plan
