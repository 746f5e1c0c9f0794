// SPDX-License-Identifier: Apache-2.0
// Two entries that Table 1 of Unifying Schemes does not have: the stashes that each worker copies to their
// homes, and the stashes that it copies back. docs/table1.md proves the formulas. Letters as in
// table1_test.cpp; H is the set of the stages whose home is the host.
//
//  row                                     out and back, each worker
//  DDP and FSDP                            #{b < B : b = w mod W} #H
//  PP                                      B [w in H]
//  LPP and FSLPP                           n_g #{s in H : s = r mod R}
//
// With a limit of K stashes for each worker, homes for as few stashes as it needs, in the order of the
// schedule. P is the worker's activation storage; all entries are 0 where P <= K. K of copies is without the
// memory that is left for copies under way.
//
//  row             made again                                     copied, and none made again
//  DDP, FSDP       #{b < B : b = w mod W} (S - K)                 the same
//  GPipe           B - K                                          the same
//  1F1B, eager     #{1 <= b < B : (b - 1) mod (P - 1) >= K - 1}   #{b < B : b mod (P - 1) >= K - 1}
//  LPP, FSLPP      n_g S_r - K                                    the same
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/table1.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/schedule/homes_to_fit.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::plan {
namespace {

using table1::at;
using table1::congruent;
using table1::request;

/// Stages whose stashes take 1, 3, 5, ... bytes, so that no two sets of stages up to two are as large.
std::uint64_t stash_bytes(int stage) { return 2 * static_cast<std::uint64_t>(stage) + 1; }

Costs sized_costs(int stages) {
  Costs costs;
  costs.sizes.clear();
  for (int s = 0; s < stages; ++s) costs.sizes.push_back({.stash = stash_bytes(s)});
  costs.set_copy(0.25);
  return costs;
}

/// The copies of a worker in one direction, counted in the simulated timeline.
Received copied(const Schedule& schedule, const Timeline& timeline, int worker, Pass pass) {
  Received copies;
  for (const JobId id : schedule.copies_of(worker)) {
    const Job job = schedule.job(id);
    if (job.pass != pass || timeline.spans[id].end <= timeline.spans[id].start) continue;
    ++copies.count;
    copies.bytes += stash_bytes(job.stage);
  }
  return copies;
}

/// `stages_of(w)`: stages whose passes worker w runs; `count_of(w)`: the micro-batches of each. `homes`: of
/// each stage.
template <class StagesOf, class CountOf>
void expect_copies(const Schedule& named, const std::vector<Home>& homes, const StagesOf& stages_of,
                   const CountOf& count_of) {
  const Schedule schedule = named.with(Discipline::ordered).with_homes(homes);
  ASSERT_EQ(check(schedule).problem, "");
  const Costs costs = sized_costs(schedule.stages());
  const std::vector<Transfers> received = count_transfers(schedule, costs);
  const Timeline timeline = simulate(schedule, costs);
  for (int w = 0; w < schedule.workers(); ++w) {
    Received expected;
    for (const int s : stages_of(w)) {
      if (!is_copied(homes[index(s)])) continue;
      expected.count += static_cast<std::uint64_t>(count_of(w));
      expected.bytes += static_cast<std::uint64_t>(count_of(w)) * stash_bytes(s);
    }
    EXPECT_EQ(received[index(w)].reloads, expected) << "worker " << w;
    EXPECT_EQ(copied(schedule, timeline, w, Pass::L), expected) << "worker " << w;
    EXPECT_EQ(copied(schedule, timeline, w, Pass::O), expected) << "worker " << w;
    EXPECT_EQ(received[index(w)].stashes.count, 0U) << "worker " << w;
  }
}

/// Homes of S stages: each kind alone, and all three by turns from each start.
std::vector<std::vector<Home>> homes_of(int S) {
  constexpr std::array kinds = {Home::worker, Home::none, Home::host};
  std::vector<std::vector<Home>> all;
  for (int first = 0; first < 3; ++first) {
    all.emplace_back(index(S), kinds[index(first)]);
    auto& by_turns = all.emplace_back();
    for (int s = 0; s < S; ++s) by_turns.push_back(kinds[index((first + s) % 3)]);
  }
  return all;
}

std::vector<int> every(int first, int step, int end) {
  std::vector<int> numbers;
  for (int i = first; i < end; i += step) numbers.push_back(i);
  return numbers;
}

TEST(Table1Homes, DataParallel) {
  for (int S = 1; S <= 6; ++S) {
    for (int B = 1; B <= 6; ++B) {
      for (int W = 1; W <= 6; ++W) {
        for (const std::string name : {"ddp", "fsdp"}) {
          SCOPED_TRACE(name + " S=" + std::to_string(S) + " B=" + std::to_string(B) +
                       " W=" + std::to_string(W));
          for (const auto& homes : homes_of(S)) {
            expect_copies(
                make_schedule(name, request(W, B, S)), homes, [&](int) { return every(0, 1, S); },
                [&](int w) { return congruent(B, w, W); });
          }
        }
      }
    }
  }
}

TEST(Table1Homes, PipelineParallel) {
  for (int S = 1; S <= 7; ++S) {
    for (int B = 1; B <= 10; ++B) {
      for (const std::string name : {"gpipe", "1f1b", "eager-1f1b"}) {
        SCOPED_TRACE(name + " S=" + std::to_string(S) + " B=" + std::to_string(B));
        for (const auto& homes : homes_of(S)) {
          expect_copies(
              make_schedule(name, request(S, B, S)), homes, [](int w) { return std::vector{w}; },
              [&](int) { return B; });
        }
      }
    }
  }
}

TEST(Table1Homes, Looped) {
  for (int S = 1; S <= 7; ++S) {
    for (int B = 1; B <= 5; ++B) {
      for (int G = 1; G <= 3; ++G) {
        for (int R = 1; R <= 4; ++R) {
          SCOPED_TRACE(at(S, B, G, R));
          auto asked = request(G * R, B, S);
          asked.groups = G;
          for (const std::string name : {"lpp", "fslpp"}) {
            for (const auto& homes : homes_of(S)) {
              expect_copies(
                  make_schedule(name, asked), homes, [&](int w) { return every(w % R, R, S); },
                  [&](int w) { return congruent(B, w / R, G); });
            }
          }
        }
      }
    }
  }
}

/// The number of a worker's stashes that leave it, by R or by O and L.
struct Leaving {
  int remade = 0;
  int copied = 0;
  friend bool operator==(const Leaving&, const Leaving&) = default;
};

Leaving leaving(const Schedule& schedule, int worker) {
  Leaving leaving;
  for (const JobId id : schedule.order(worker)) leaving.remade += schedule.job(id).pass == Pass::R ? 1 : 0;
  const Transfers received = count_transfers(schedule, Costs{})[index(worker)];
  leaving.copied = static_cast<int>(received.reloads.count);
  EXPECT_EQ(schedule.copies_of(worker, Channel::out).size(), received.reloads.count);
  EXPECT_EQ(schedule.copies_of(worker, Channel::in).size(), received.reloads.count);
  return leaving;
}

/// `expected(w, K)`: of worker w with room for K stashes, if all that leave are made again, or all are
/// copied.
template <class Expected>
void expect_leaving(const Schedule& named, const Expected& expected) {
  const Schedule schedule = named.with(Discipline::ordered);
  const std::vector<int> peaks = stashes_in_order(schedule);
  const int most = table1::max(peaks);
  for (int K = 1; K <= most; ++K) {
    const std::vector<int> limits(index(schedule.workers()), K);
    const Schedule remade = with_homes_to_fit(schedule, limits);
    for (int w = 0; w < schedule.workers(); ++w) {
      const int need = peaks[index(w)] <= K ? 0 : expected(w, K).remade;
      EXPECT_EQ(leaving(remade, w), (Leaving{.remade = need})) << "worker " << w << " K=" << K;
    }
    for (int spare = 0; spare <= std::min(2, K - 1); ++spare) {
      const Schedule copied = with_homes_to_fit(schedule, limits, {.remade = 0, .spare = spare});
      ASSERT_EQ(check(copied).problem, "");
      EXPECT_LE(table1::max(stashes_in_order(copied)), K);
      for (int w = 0; w < schedule.workers(); ++w) {
        const int need = peaks[index(w)] <= K ? 0 : expected(w, K - spare).copied;
        EXPECT_EQ(leaving(copied, w), (Leaving{.copied = need}))
            << "worker " << w << " K=" << K << " spare=" << spare;
      }
    }
  }
}

TEST(Table1Homes, DataParallelToFit) {
  for (int S = 1; S <= 8; ++S) {
    for (int B = 1; B <= 8; ++B) {
      for (int W = 1; W <= 5; ++W) {
        SCOPED_TRACE("S=" + std::to_string(S) + " B=" + std::to_string(B) + " W=" + std::to_string(W));
        expect_leaving(make_schedule("ddp", request(W, B, S)), [&](int w, int K) {
          const int all = congruent(B, w, W) * (S - K);
          return Leaving{.remade = all, .copied = all};
        });
      }
    }
  }
}

TEST(Table1Homes, PipelineParallelToFit) {
  for (int S = 1; S <= 8; ++S) {
    for (int B = 1; B <= 24; ++B) {
      for (const std::string name : {"gpipe", "1f1b", "eager-1f1b"}) {
        SCOPED_TRACE(name + " S=" + std::to_string(S) + " B=" + std::to_string(B));
        expect_leaving(make_schedule(name, request(S, B, S)), [&](int w, int K) {
          if (name == "gpipe") return Leaving{.remade = B - K, .copied = B - K};
          const int P = std::min(B, name == "1f1b" ? S - w : 2 * (S - w) - 1);
          Leaving all;
          for (int b = 1; b < B; ++b) all.remade += (b - 1) % (P - 1) >= K - 1 ? 1 : 0;
          for (int b = 0; b < B; ++b) all.copied += b % (P - 1) >= K - 1 ? 1 : 0;
          return all;
        });
      }
    }
  }
}

TEST(Table1Homes, LoopedToFit) {
  for (int S = 1; S <= 9; ++S) {
    for (int B = 1; B <= 7; ++B) {
      for (int G = 1; G <= 3; ++G) {
        for (int R = 1; R <= 4; ++R) {
          SCOPED_TRACE(at(S, B, G, R));
          auto asked = request(G * R, B, S);
          asked.groups = G;
          expect_leaving(make_schedule("lpp", asked), [&](int w, int K) {
            const int all = congruent(B, w / R, G) * congruent(S, w % R, R) - K;
            return Leaving{.remade = all, .copied = all};
          });
        }
      }
    }
  }
}

// Source: docs/stashes.md, "As few as memory needs": 50 and 86 of 256 stashes.
TEST(Table1Homes, ToFitAsTheExampleOfStashes) {
  const auto sum = [](const auto& leaves, int K) {
    int count = 0;
    for (int P = K + 1; P <= 8; ++P) {
      for (int b = 0; b < 32; ++b) count += leaves(b, P, K) ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(sum([](int b, int P, int K) { return b > 0 && (b - 1) % (P - 1) >= K - 1; }, 4), 50);
  EXPECT_EQ(sum([](int b, int P, int K) { return b % (P - 1) >= K - 1; }, 3), 86);  // one place is spare
}

}  // namespace
}  // namespace starpipe::plan
