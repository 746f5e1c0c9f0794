// SPDX-License-Identifier: Apache-2.0
// Properties of all named schedules, and comparisons with published generators and papers.
#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/message_of.hpp"

namespace starpipe::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ScheduleRequest request(int workers, int microbatches, const Costs& costs = {}) {
  ScheduleRequest result;
  result.workers = workers;
  result.microbatches = microbatches;
  result.costs = costs;
  return result;
}

Costs costs(Durations durations, double comm) {
  Costs result;
  result.durations = {durations};
  result.links = Link{.alpha = comm};
  return result;
}

int peak(const Timeline& timeline) { return std::ranges::max(timeline.peak_stashes); }

// The schedules that need certain numbers of workers or micro-batches, and the condition for them.
const std::map<std::string, std::function<bool(int W, int B)>> defined_for = {
    {"chimera", [](int W, int) { return W % 2 == 0; }},
    {"dualpipe", [](int W, int B) { return W % 2 == 0 && B % 2 == 0 && B >= 2 * W; }},
    {"dualpipe-v", [](int W, int B) { return B >= 2 * W; }},
    {"lpp", [](int, int) { return false; }},  // needs groups
    {"fslpp", [](int, int) { return false; }},
};

TEST(NamedSchedules, FinishForAnyWorkersAndMicrobatches) {
  for (const auto& entry : schedule_entries()) {
    const auto rule = defined_for.find(entry.name);
    for (int W = 1; W <= 9; ++W) {
      for (int B = 1; B <= 2 * W + 4; ++B) {
        SCOPED_TRACE(entry.name + " W=" + std::to_string(W) + " B=" + std::to_string(B));
        if (rule != defined_for.end() && !rule->second(W, B)) {
          EXPECT_THROW(make_schedule(entry.name, request(W, B)), InputError);
          continue;
        }
        const Schedule schedule = make_schedule(entry.name, request(W, B));
        ASSERT_TRUE(check(schedule).ok()) << check(schedule).problem;
        EXPECT_EQ(schedule.stages(), entry.stages_per_worker * W);
      }
    }
  }
}

TEST(NamedSchedules, AreThePublishedOnes) {
  std::ifstream file(STARPIPE_TEST_DATA "/published.json");
  const auto published = nlohmann::json::parse(file);
  const std::set<std::string> exact = {"1f1b", "interleaved-1f1b"};
  ASSERT_GT(published.at("cases").size(), 200U);
  for (const auto& row : published.at("cases")) {
    SCOPED_TRACE(row.dump());
    const std::string name = row.at(0);
    const int W = row.at(1);
    const auto c = costs({row.at(3), row.at(4), row.at(5)}, row.at(6));
    const Schedule schedule = make_schedule(name, request(W, row.at(2), c));
    const Timeline timeline = simulate(schedule, c);
    const double makespan = row.at(7);
    const double memory = row.at(9);
    const double held = static_cast<double>(peak(timeline)) * W / schedule.stages();
    if (exact.contains(name)) {
      EXPECT_NEAR(timeline.makespan, makespan, 1e-9 * makespan);
      EXPECT_NEAR(timeline.device_span, row.at(8), 1e-9 * makespan);
      EXPECT_DOUBLE_EQ(held, memory);
    } else {
      EXPECT_LE(timeline.makespan, 1.01 * makespan);
      EXPECT_LE(held, memory);
    }
  }
}

// Makespans and memory by formulas, for sizes, durations and transfer times that published.json does not
// have.
TEST(NamedSchedules, HaveTheMakespansOfTheirFormulas) {
  struct Formula {
    std::string name;
    std::function<double(double W, double B)> makespan;  // if F = B = W = 1 for a chunk
    std::function<double(double W, double B)> memory;    // in stages
  };
  const auto one = [](double per_worker) {
    return [=](double W, double B) { return 3 * B + per_worker * (W - 1); };
  };
  const std::vector<Formula> formulas = {
      {"gpipe", one(3), [](double, double B) { return B; }},
      {"1f1b", one(3), [](double W, double) { return W; }},
      {"zb-h1", one(1), [](double W, double) { return W; }},
      {"zb-h2", one(1), [](double W, double) { return 2 * W - 1; }},
      {"zb-1p", one(1), [](double W, double) { return W; }},
      {"v-zb", [](double W, double B) { return 6 * B + W - 1; }, [](double W, double) { return 2 * W; }},
      {"v-half", [](double W, double B) { return 6 * B + 3 * W - 7; },
       [](double W, double) { return W + 2; }},
      {"interleaved-1f1b", [](double W, double B) { return 6 * B + 3 * (W - 1); },
       [](double W, double) { return 3 * W - 1; }},
      // Controllable Memory, appendices G and H: the same bubbles; with one interval, in the same memory or
      // less.
      {"interleaved-uniform", [](double W, double B) { return 6 * B + 3 * (W - 1); },
       [](double W, double) { return 3 * W - 1; }},
      {"interleaved-low-memory", [](double W, double B) { return 6 * B + 3 * (W - 1); },
       [](double W, double) { return 2 * W + (2 * static_cast<int>(W) + 2) / 3 / 2; }},
      {"interleaved-zb", [](double W, double B) { return 6 * B + W - 1; },
       [](double W, double) { return 2 * W; }},
      {"looped-bfs", [](double W, double B) { return 6 * B + 3 * (W - 1); },
       [](double, double B) { return 2 * B; }},
      {"chimera", [](double W, double B) { return 3 * B + (W - 2) * (1 + B / W); },
       [](double W, double) { return W; }},
      {"gems", [](double W, double B) { return (2 * W + 1) * B + W - 1; }, [](double, double) { return 1; }},
      {"dualpipe", [](double W, double B) { return 3 * B + W / 2 - 1; },
       [](double W, double) { return W + 1; }},
      {"dualpipe-v", [](double W, double B) { return 6 * B + W - 1; },
       [](double W, double) { return 2 * W + 1; }},
  };
  for (const auto& formula : formulas) {
    for (const auto& [W, B] : {std::pair{4, 12}, {6, 24}, {10, 20}, {12, 48}}) {
      SCOPED_TRACE(formula.name + " W=" + std::to_string(W) + " B=" + std::to_string(B));
      const Timeline timeline = simulate(make_schedule(formula.name, request(W, B)));
      EXPECT_DOUBLE_EQ(timeline.makespan, formula.makespan(W, B));
      EXPECT_DOUBLE_EQ(peak(timeline), formula.memory(W, B));
    }
  }
}

TEST(NamedSchedules, NeedNoMoreMemoryThanTheirNamesPromise) {
  for (const int W : {3, 6, 9, 16, 24}) {
    const auto held = [&](const std::string& name) {
      const Schedule schedule = make_schedule(name, request(W, 4 * W));
      return static_cast<double>(peak(simulate(schedule))) * W / schedule.stages();
    };
    EXPECT_LE(held("v-min"), W / 3.0 + 1);
    EXPECT_LE(held("v-half"), W / 2.0 + 1);
    EXPECT_LE(held("1f1b-v"), 2 * W / 3.0 + 1);
    EXPECT_LE(held("zb-low-memory"), std::min<double>(W, 2 * W / 3.0 + 2));
    EXPECT_LE(held("grouped-interleaved"), 3 * (W + 1) / 4.0);
    EXPECT_LE(held("interleaved-low-memory"), W <= 3 ? W + 1 : held("interleaved-1f1b") - 1);
    EXPECT_LE(held("interleaved-uniform"), held("interleaved-1f1b"));
  }
}

// With two thirds of 1F1B's memory, time is lost at the two ends only. If it holds as much as 1F1B, no time
// is lost.
TEST(NamedSchedules, LowMemoryZeroBubbleNeverLosesToOneForwardOneBackward) {
  for (int W = 2; W <= 16; ++W) {
    for (const int B : {1, W - 1, W, 2 * W, 4 * W, 4 * W + 1}) {
      SCOPED_TRACE(::testing::Message() << "W=" << W << " B=" << B);
      const Timeline low = simulate(make_schedule("zb-low-memory", request(W, B)));
      const Timeline h1 = simulate(make_schedule("zb-h1", request(W, B)));
      EXPECT_LT(low.makespan, simulate(make_schedule("1f1b", request(W, B))).makespan);
      EXPECT_LE(peak(low), peak(h1));
      if (peak(low) == peak(h1)) {
        EXPECT_LE(low.makespan, h1.makespan);
      }
      if (B < 2 * W) continue;
      EXPECT_EQ(peak(low), std::min(W, 2 * (W / 3) + 2));
      EXPECT_LE(low.makespan, h1.makespan + W);
    }
  }
}

TEST(NamedSchedules, InterleavedTakesAnyChunksPerWorker) {
  for (const std::string name : {"interleaved-1f1b", "interleaved-uniform", "interleaved-low-memory",
                                 "grouped-interleaved", "interleaved-zb", "looped-bfs", "looped-dfs"}) {
    for (const int chunks : {1, 3, 4}) {
      for (const int B : {1, 3, 5, 12}) {
        ScheduleRequest wanted = request(4, B);
        wanted.graph = StageGraph::chain(4 * chunks);
        const Schedule schedule = make_schedule(name, wanted);
        EXPECT_TRUE(check(schedule).ok()) << name << chunks << B << check(schedule).problem;
        EXPECT_EQ(schedule.compute(schedule.forward(4 * chunks - 1, 0)), 3);
      }
    }
    ScheduleRequest uneven = request(4, 4);
    uneven.graph = StageGraph::chain(6);
    EXPECT_THROW(make_schedule(name, uneven), InputError) << name;
  }
}

TEST(NamedSchedules, RefuseWhatTheyHaveNoAnswerTo) {
  const auto refusal = [](const std::string& name, const ScheduleRequest& wanted) {
    return message_of([&] { make_schedule(name, wanted); });
  };
  ScheduleRequest stages = request(4, 8);
  stages.graph = StageGraph::chain(6);
  EXPECT_THAT(refusal("v-min", stages), HasSubstr("4 workers need 8 stages, not 6"));
  ScheduleRequest tree = request(3, 8);
  tree.graph = StageGraph(3, {{0, 2}, {1, 2}});
  EXPECT_THAT(refusal("zb-h1", tree), HasSubstr("chain"));
  ScheduleRequest placed = request(4, 8);
  placed.stage_workers = {0, 1, 2, 3};
  EXPECT_THAT(refusal("zb-1p", placed), HasSubstr("placement"));
  EXPECT_THAT(refusal("chimera", request(3, 8)), HasSubstr("not 3"));
  EXPECT_THAT(refusal("dualpipe", request(4, 7)), HasSubstr("not 7"));
  EXPECT_THAT(refusal("dualpipe-v", request(4, 7)), HasSubstr("not 7"));
}

TEST(NamedSchedules, AreKnownByPyTorchsNames) {
  const std::map<std::string, std::string> names = {{"GPipe", "gpipe"},
                                                    {"1F1B", "1f1b"},
                                                    {"Interleaved1F1B", "interleaved-1f1b"},
                                                    {"LoopedBFS", "looped-bfs"},
                                                    {"InterleavedZeroBubble", "interleaved-zb"},
                                                    {"ZBVZeroBubble", "v-zb"},
                                                    {"DualPipeV", "dualpipe-v"}};
  for (const auto& [alias, name] : names) {
    EXPECT_EQ(find_schedule(alias).name, name);
    EXPECT_EQ(make_schedule(alias, request(4, 8)), make_schedule(name, request(4, 8)));
  }
}

std::vector<std::string> actions(const Schedule& schedule, int worker) {
  std::vector<std::string> result;
  for (const JobId id : schedule.order(worker)) result.push_back(to_string(schedule.job(id)));
  return result;
}

// The actions of torch.distributed.pipelining's ScheduleInterleavedZeroBubble and ScheduleInterleaved1F1B:
// rounds of micro-batches, warm-ups, and W `worker` passes after B.
std::vector<std::string> interleaved_actions(int workers, int chunks, int B, int worker, bool zero_bubble) {
  const int rounds = std::max(1, B / workers);
  const int round = B / rounds;
  std::map<Pass, std::vector<std::string>> jobs;
  for (int first = 0; first < B; first += round) {
    for (int c = 0; c < chunks; ++c) {
      for (int b = first; b < first + round; ++b) {
        jobs[Pass::F].push_back(to_string(Job{c * workers + worker, b, Pass::F}));
        for (const Pass pass : {Pass::B, Pass::W, Pass::BW}) {
          jobs[pass].push_back(to_string(Job{(chunks - 1 - c) * workers + worker, b, pass}));
        }
      }
    }
  }
  const int ahead = (workers - 1 - worker) * (zero_bubble ? 1 : 2);
  const auto warm_up = static_cast<std::size_t>(std::min((chunks - 1) * round + ahead, chunks * B));
  auto forward = jobs[Pass::F].begin();
  auto weights = jobs[Pass::W].begin();
  std::vector<std::string> result(forward, forward + static_cast<std::ptrdiff_t>(warm_up));
  forward += static_cast<std::ptrdiff_t>(warm_up);
  int done = 0;
  for (const std::string& backward : jobs[zero_bubble ? Pass::B : Pass::BW]) {
    if (forward != jobs[Pass::F].end()) result.push_back(*forward++);
    result.push_back(backward);
    if (zero_bubble && done++ >= worker) result.push_back(*weights++);
  }
  if (zero_bubble) result.insert(result.end(), weights, jobs[Pass::W].end());
  return result;
}

TEST(NamedSchedules, InterleavedOnesRunPyTorchsActions) {
  EXPECT_THAT(actions(make_schedule("InterleavedZeroBubble", request(2, 2)), 0),
              ElementsAre("F(0,0)", "F(0,1)", "F(2,0)", "F(2,1)", "B(2,0)", "W(2,0)", "B(2,1)", "W(2,1)",
                          "B(0,0)", "W(0,0)", "B(0,1)", "W(0,1)"));
  EXPECT_THAT(actions(make_schedule("InterleavedZeroBubble", request(2, 2)), 1),
              ElementsAre("F(1,0)", "F(1,1)", "F(3,0)", "B(3,0)", "F(3,1)", "B(3,1)", "W(3,0)", "B(1,0)",
                          "W(3,1)", "B(1,1)", "W(1,0)", "W(1,1)"));
  for (const int W : {1, 2, 3, 4, 7}) {
    for (const int chunks : {1, 2, 3}) {
      for (int B = 1; B <= 4 * W; ++B) {
        if (B % std::max(1, B / W) != 0) continue;  // PyTorch needs rounds of one size
        ScheduleRequest wanted = request(W, B);
        wanted.graph = StageGraph::chain(W * chunks);
        const Schedule zero_bubble = make_schedule("InterleavedZeroBubble", wanted);
        const Schedule fused = make_schedule("Interleaved1F1B", wanted);
        for (int w = 0; w < W; ++w) {
          SCOPED_TRACE(::testing::Message() << "W=" << W << " chunks=" << chunks << " B=" << B << " w=" << w);
          EXPECT_EQ(actions(zero_bubble, w), interleaved_actions(W, chunks, B, w, true));
          EXPECT_EQ(actions(fused, w), interleaved_actions(W, chunks, B, w, false));
        }
      }
    }
  }
}

// The placement alone makes two replicas: two workers hold each stage and exchange gradients.
TEST(NamedSchedules, BidirectionalOnesHoldEachStageTwice) {
  for (const std::string name : {"gems", "chimera", "dualpipe"}) {
    const Schedule schedule = make_schedule(name, request(4, 8));
    for (int s = 0; s < 4; ++s) {
      EXPECT_THAT(weight_holders(schedule, s),
                  ::testing::ElementsAre(std::min(s, 3 - s), std::max(s, 3 - s)));
      EXPECT_EQ(gradient_workers(schedule, s), weight_holders(schedule, s));
    }
  }
}

TEST(NamedSchedules, ZeroBubbleOnesAreMadeForTheDurations) {
  const auto unequal = costs({1, 3, 0.5}, 0.4);
  for (const std::string name : {"zb-2p", "v-zb"}) {
    const double informed = simulate(make_schedule(name, request(8, 24, unequal)), unequal).device_span;
    const double blind = simulate(make_schedule(name, request(8, 24)), unequal).device_span;
    EXPECT_LT(informed, blind) << name;
  }
}

TEST(NamedSchedules, MadeForAnyDurationsFinishWithinTheirMemory) {
  std::mt19937 rng(7);
  std::uniform_real_distribution<double> time(0, 4);
  for (int i = 0; i < 300; ++i) {
    const int W = 1 + static_cast<int>(rng() % 7);
    const int B = 1 + static_cast<int>(rng() % 14);
    for (const auto& [name, limit] :
         {std::pair{"zb-1p", W}, {"zb-2p", 2 * W}, {"zb-low-memory", W}, {"v-zb", 2 * W}}) {
      Costs c;
      c.durations.clear();
      for (int s = 0; s < find_schedule(name).stages_per_worker * W; ++s) {
        c.durations.push_back({time(rng), rng() % 5 == 0 ? 0 : time(rng), rng() % 5 == 0 ? 0 : time(rng)});
      }
      c.links = Link{.alpha = rng() % 3 == 0 ? 0 : time(rng)};
      SCOPED_TRACE(std::string(name) + " W=" + std::to_string(W) + " B=" + std::to_string(B) + " case " +
                   std::to_string(i));
      const Schedule schedule = make_schedule(name, request(W, B, c));
      ASSERT_TRUE(check(schedule).ok()) << check(schedule).problem;
      EXPECT_LE(peak(simulate(schedule, c)), limit);
    }
  }
}

// They keep the requested memory limit under any durations and transfers, and the schedule has this limit.
TEST(NamedSchedules, PeriodicOnesKeepAnyMemoryLimit) {
  std::mt19937 rng(9);
  std::uniform_real_distribution<double> time(0, 4);
  for (int i = 0; i < 200; ++i) {
    const int W = 1 + static_cast<int>(rng() % 7);
    ScheduleRequest wanted = request(W, 1 + static_cast<int>(rng() % 14));
    wanted.costs->durations.clear();
    for (int s = 0; s < W; ++s) {
      wanted.costs->durations.push_back(
          {time(rng), rng() % 5 == 0 ? 0 : time(rng), rng() % 5 == 0 ? 0 : time(rng)});
    }
    if (i % 20 == 0) wanted.costs->durations = {{0, 0, 0}};
    wanted.costs->links = Link{.alpha = rng() % 3 == 0 ? 0 : time(rng) * (i % 10 == 0 ? 1e6 : 1)};
    wanted.costs->prefetch = rng() % 3 != 0;
    for (const std::string name : {"1f1b-star", "k-periodic"}) {
      SCOPED_TRACE(name + " case " + std::to_string(i));
      wanted.memory_limits.clear();
      ASSERT_NO_THROW(make_schedule(name, wanted))
          << W << " " << wanted.costs->link(0, 1).alpha << " " << wanted.costs->prefetch;
      ASSERT_TRUE(check(make_schedule(name, wanted)).ok());
      EXPECT_TRUE(make_schedule(name, wanted).memory_limits().empty());
      const int limit = 1 + i % 4;
      wanted.memory_limits.assign(index(W), limit);
      const Schedule schedule = make_schedule(name, wanted);
      ASSERT_TRUE(check(schedule).ok()) << check(schedule).problem;
      EXPECT_THAT(schedule.memory_limits(), ::testing::ElementsAreArray(wanted.memory_limits));
      EXPECT_EQ(schedule.discipline(), Discipline::ordered);
      const Timeline timeline = simulate(schedule, *wanted.costs);
      EXPECT_LE(peak(timeline), limit);
      wanted.memory_limits.back() = limit + 1;
      const LimitedSchedule unequal =
          make_limited_schedule(name, wanted, {.memory_limits = wanted.memory_limits}, *wanted.costs);
      ASSERT_TRUE(check(unequal.schedule).ok()) << check(unequal.schedule).problem;
      EXPECT_THAT(unequal.schedule.memory_limits(), ::testing::ElementsAreArray(wanted.memory_limits));
    }
  }
}

// Transfers are part of the pattern: more micro-batches are in flight if that hides the transfers.
TEST(NamedSchedules, PeriodicOnesAreMadeForTransfers) {
  const auto with = costs({1, 1, 0}, 0.5);
  for (const std::string name : {"1f1b-star", "k-periodic"}) {
    const auto growth = [&](const Costs& known) {
      const Schedule some = make_schedule(name, request(6, 40, known));
      const Schedule more = make_schedule(name, request(6, 80, known));
      return (simulate(more, with).makespan - simulate(some, with).makespan) / 40;
    };
    EXPECT_NEAR(growth(with), 2, 1e-9) << name << ": no stage waits";
    EXPECT_GT(growth({}), 2.5) << name;
  }
}

// 1F1B-R: every F is repeated, and only R and a running backward pass have a whole stash. R of an ordered
// schedule runs while its worker waits for the gradient, so it costs less than an F more in each B.
TEST(NamedSchedules, RecomputationTakesTimeForMemory) {
  Costs plain = costs({2, 3, 1}, 0);
  plain.sizes = {{.activation = 10, .gradient = 10, .stash = 100, .gradient_stash = 7, .weights = 0}};
  constexpr std::array none = {Home::none};
  EXPECT_DOUBLE_EQ(with_recomputation(plain, none).duration(0).B, 5);
  for (const int W : {1, 4, 6}) {
    ScheduleRequest wanted = request(W, 12, plain);
    wanted.homes = {Home::none};
    const Schedule schedule = make_schedule("1f1b", wanted);
    EXPECT_TRUE(schedule.recomputes_all());
    const Timeline timeline = simulate(schedule, plain);
    // The last backward pass of the first worker waits for those of the others, and R does not.
    EXPECT_DOUBLE_EQ(timeline.makespan, 12 * (2 + 2 + 3 + 1) + (W - 1) * (2 + 3 + 1));
    for (int w = 0; w < W; ++w) {
      const auto worker = index(w);
      EXPECT_EQ(timeline.peak_stashes[worker], 1);
      // W - s inputs of 10 bytes, none for the data of stage 0, and one stash.
      const auto inputs = static_cast<std::uint64_t>(w == 0 ? 0 : 10 * (W - w));
      EXPECT_EQ(timeline.peak_stash_bytes[worker], 100 + inputs);
    }
  }
  // With a split backward pass, W needs the stash that B computed again.
  ScheduleRequest split = request(4, 12, plain);
  split.homes = {Home::none};
  const Timeline timeline = simulate(make_schedule("zb-h1", split), plain);
  EXPECT_GT(peak(timeline), 1);
  EXPECT_LE(peak(timeline), 4);
}

}  // namespace
}  // namespace starpipe::plan
