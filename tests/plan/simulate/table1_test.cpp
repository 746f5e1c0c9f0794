// SPDX-License-Identifier: Apache-2.0
// Table 1 of Unifying Schemes, entry by entry: the paper's formula, where it holds, and the value that is
// true everywhere (docs/table1.md gives the reasons). F + B takes one unit, whatever the split; "per worker"
// in the paper is the worst worker. n = ceil(B/G) micro-batches a group, C = ceil(S/R) loops, worker (g, r)
// is worker r of group g, n_g its micro-batches, S_r = #{s < S : s = r mod R} its stages, and K(g,r) = #{s <
// S : s = g mod G and s = r mod R}; it is 0 unless g = r mod gcd(G, R), and then floor or ceil of S / lcm(G,
// R).
//
//  entry                  paper              holds (worst worker)         true value, each worker
//  DDP, W = B
//   latency               S                  always                       S        [W < B: ceil(B/W) S]
//   activations received  0                  always                       0
//   weights received      0                  always                       0
//   activation storage    S                  always                       S
//   weight storage        S                  always                       S
//  FSDP, W = B
//   weights received      S - 1              W <= S < 2W                  S - #{s : s = w mod W}
//                                            (every worker: S = W)
//   weight storage        1                  S <= W                       #{s : s = w mod W}
//                                            (every worker: S = W)
//   all others            as DDP
//  PP, W = S
//   latency               B + S - 1          always (GPipe, 1F1B, eager)  B + S - 1
//   activations received  B                  S > 1                        B, and 0 on worker 0
//   weights received      0                  always                       0
//   activation storage    min(S, B)          1F1B: always                 min(S - w, B)
//                                            GPipe: B <= S                B
//                                            eager 1F1B: B <= S or S = 1  min(2 (S - w) - 1, B)
//   weight storage        1                  always                       1
//  LPP, W = G R (the paper needs R | S and G | B)
//   latency               S + B/G - 1        n <= R or S <= R             n <= R: S + n - 1
//                                                                         n >  R: n C + (S - 1) mod R
//   activations received  B                  R > 1, S = W                 n_g (S_r - [r = 0]); 0 if R = 1
//   weights received      0                  always                       0
//   activation storage    S/R min(S, B/G)    n <= S                       n_g S_r
//   weight storage        S/R                always                       S_r (0 if n_g = 0)
//  FSLPP, W = G R
//   weights received      S - 1              R = 1 and G <= S < 2G, or    S_r - K(g,r) (0 if n_g = 0)
//                                            S = R = 2 and G > 1
//                                            (every worker: R = 1, S = G)
//   weight storage        1                  S <= lcm(G, R)               K(g,r)
//                                            (every worker: gcd = 1, S = W)
//   all others            as LPP
#include "plan/simulate/table1.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/simulate/reductions.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::plan {
namespace {

using table1::at;
using table1::congruent;
using table1::max;
using table1::request;
using table1::splits;
using table1::tolerance;
using table1::unit_costs;

struct Row {
  double latency = 0;
  // Per worker:
  std::vector<std::uint64_t> activations;
  std::vector<std::uint64_t> gradients;
  std::vector<std::uint64_t> weights;
  std::vector<int> stashes;
  std::vector<int> weight_storage;

  explicit Row(int workers)
      : activations(index(workers)),
        gradients(activations),
        weights(activations),
        stashes(index(workers)),
        weight_storage(stashes) {}
};

template <class T>
bool everywhere(const std::vector<T>& values, T value) {
  return std::ranges::all_of(values, [value](T v) { return v == value; });
}

/// #{s < S : s = g mod G and s = r mod R}, by the Chinese remainder theorem.
int congruent_to_both(int S, int g, int G, int r, int R) {
  if ((g - r) % std::gcd(G, R) != 0) return 0;
  int first = r;
  while (first % G != g) first += R;
  return congruent(S, first, std::lcm(G, R));
}

void expect_row(const Schedule& schedule, const Row& expected) {
  ASSERT_EQ(check(schedule).problem, "");
  std::vector<int> storage(index(schedule.workers()));
  for (int s = 0; s < schedule.stages(); ++s) {
    for (const int holder : weight_holders(schedule, s)) ++storage[index(holder)];
  }
  EXPECT_EQ(storage, expected.weight_storage);
  const auto received = count_transfers(schedule, Costs{});
  for (std::size_t w = 0; w < received.size(); ++w) {
    EXPECT_EQ(received[w].activations.count, expected.activations[w]) << "worker " << w;
    EXPECT_EQ(received[w].gradients.count, expected.gradients[w]) << "worker " << w;
    EXPECT_EQ(received[w].weights.count, expected.weights[w]) << "worker " << w;
    EXPECT_EQ(received[w].stashes.count, 0U) << "worker " << w;
  }
  for (const Durations& split : splits) {
    const Timeline timeline = simulate(schedule, unit_costs(split));
    EXPECT_NEAR(timeline.makespan, expected.latency, tolerance) << "F=" << split.F;
    EXPECT_EQ(timeline.peak_stashes, expected.stashes) << "F=" << split.F;
  }
}

Row data_parallel_truth(int S, int B, int W, bool sharded) {
  Row row(W);
  row.latency = ceil_div(B, W) * S;
  for (int w = 0; w < W; ++w) {
    const auto i = index(w);
    const int own = congruent(S, w, W);
    row.stashes[i] = w < B ? S : 0;
    row.weight_storage[i] = sharded ? own : (w < B ? S : 0);
    row.weights[i] = sharded && w < B ? static_cast<std::uint64_t>(S - own) : 0U;
  }
  return row;
}

Row looped_truth(int S, int B, int G, int R, bool sharded) {
  Row row(G * R);
  const int n = ceil_div(B, G);
  row.latency = n <= R ? S + n - 1 : n * ceil_div(S, R) + (S - 1) % R;
  for (int g = 0; g < G; ++g) {
    for (int r = 0; r < R; ++r) {
      const auto i = index(g * R + r);
      const int n_g = congruent(B, g, G);
      const int stages = congruent(S, r, R);
      const int last_r = (S - 1) % R;
      const int held = congruent_to_both(S, g, G, r, R);
      row.activations[i] = R == 1 ? 0U : static_cast<std::uint64_t>(n_g * (stages - (r == 0 ? 1 : 0)));
      row.gradients[i] = R == 1 ? 0U : static_cast<std::uint64_t>(n_g * (stages - (r == last_r ? 1 : 0)));
      row.weights[i] = sharded && n_g > 0 ? static_cast<std::uint64_t>(stages - held) : 0U;
      row.stashes[i] = n_g * stages;
      row.weight_storage[i] = sharded ? held : (n_g > 0 ? stages : 0);
    }
  }
  return row;
}

TEST(Table1, DataParallel) {
  for (int S = 1; S <= 9; ++S) {
    for (int B = 1; B <= 9; ++B) {
      for (int W = 1; W <= 9; ++W) {
        SCOPED_TRACE("S=" + std::to_string(S) + " B=" + std::to_string(B) + " W=" + std::to_string(W));
        const Row ddp = data_parallel_truth(S, B, W, false);
        const Row fsdp = data_parallel_truth(S, B, W, true);
        expect_row(make_schedule("ddp", request(W, B, S)), ddp);
        expect_row(make_schedule("fsdp", request(W, B, S)), fsdp);
        if (W != B) continue;

        for (const Row& row : {ddp, fsdp}) {
          EXPECT_EQ(row.latency, S);
          EXPECT_TRUE(everywhere(row.activations, std::uint64_t{0}));
          EXPECT_TRUE(everywhere(row.stashes, S));
        }
        EXPECT_TRUE(everywhere(ddp.weights, std::uint64_t{0}));
        EXPECT_TRUE(everywhere(ddp.weight_storage, S));
        const auto paper = static_cast<std::uint64_t>(S - 1);
        EXPECT_EQ(max(fsdp.weights) == paper, W <= S && S < 2 * W);
        EXPECT_EQ(everywhere(fsdp.weights, paper), S == W);
        EXPECT_EQ(max(fsdp.weight_storage) == 1, S <= W);
        EXPECT_EQ(everywhere(fsdp.weight_storage, 1), S == W);
      }
    }
  }
}

TEST(Table1, PipelineParallel) {
  for (int S = 1; S <= 9; ++S) {
    for (int B = 1; B <= 20; ++B) {
      for (const std::string name : {"gpipe", "1f1b", "eager-1f1b"}) {
        SCOPED_TRACE(name + " S=" + std::to_string(S) + " B=" + std::to_string(B));
        Row row(S);
        row.latency = B + S - 1;
        for (int w = 0; w < S; ++w) {
          const auto i = index(w);
          row.activations[i] = w == 0 ? 0U : static_cast<std::uint64_t>(B);
          row.gradients[i] = w == S - 1 ? 0U : static_cast<std::uint64_t>(B);
          row.weight_storage[i] = 1;
          row.stashes[i] = name == "gpipe" ? B : std::min(B, name == "1f1b" ? S - w : 2 * (S - w) - 1);
        }
        expect_row(make_schedule(name, request(S, B, S)), row);

        EXPECT_EQ(row.latency, B + S - 1);
        EXPECT_EQ(max(row.activations) == static_cast<std::uint64_t>(B), S > 1);
        EXPECT_EQ(max(row.stashes) == std::min(S, B),
                  name == "1f1b" || B <= S || (name != "gpipe" && S == 1));
        EXPECT_TRUE(everywhere(row.weight_storage, 1));
      }
    }
  }
}

TEST(Table1, Looped) {
  for (int S = 1; S <= 12; ++S) {
    for (int B = 1; B <= 8; ++B) {
      for (int G = 1; G <= 5; ++G) {
        for (int R = 1; R <= 5; ++R) {
          SCOPED_TRACE(at(S, B, G, R));
          auto asked = request(G * R, B, S);
          asked.groups = G;
          const Row lpp = looped_truth(S, B, G, R, false);
          const Row fslpp = looped_truth(S, B, G, R, true);
          expect_row(make_schedule("lpp", asked), lpp);
          expect_row(make_schedule("fslpp", asked), fslpp);
        }
      }
    }
  }
}

/// Where the paper's formulas for LPP and FSLPP equal the true values that the test above establishes.
TEST(Table1, LoopedFormulasHoldWhereTheHeaderSays) {
  for (int R = 1; R <= 6; ++R) {
    for (int S = R; S <= 36; S += R) {
      for (int G = 1; G <= 6; ++G) {
        for (int n = 1; n <= 12; ++n) {
          const int B = n * G;
          const int W = G * R;
          SCOPED_TRACE(at(S, B, G, R));
          const Row lpp = looped_truth(S, B, G, R, false);
          const Row fslpp = looped_truth(S, B, G, R, true);

          EXPECT_EQ(lpp.latency == S + n - 1, n <= R || S <= R);
          if (n > R) {
            EXPECT_EQ(lpp.latency, n * (S / R) + R - 1);
          }
          EXPECT_GE(lpp.latency, n * (S / R)) << "the work of one worker";
          EXPECT_EQ(max(lpp.activations) == static_cast<std::uint64_t>(B), R > 1 && S == W);
          EXPECT_EQ(max(lpp.stashes) == S / R * std::min(S, n), n <= S);
          EXPECT_TRUE(everywhere(lpp.weight_storage, S / R));
          EXPECT_TRUE(everywhere(lpp.weights, std::uint64_t{0}));
          EXPECT_EQ(fslpp.activations, lpp.activations);
          EXPECT_EQ(fslpp.stashes, lpp.stashes);
          EXPECT_EQ(fslpp.latency, lpp.latency);

          const auto paper = static_cast<std::uint64_t>(S - 1);
          EXPECT_EQ(max(fslpp.weights) == paper,
                    (R == 1 && G <= S && S < 2 * G) || (S == 2 && R == 2 && G > 1));
          EXPECT_EQ(everywhere(fslpp.weights, paper), R == 1 && S == G);
          EXPECT_EQ(max(fslpp.weight_storage) == 1, S <= std::lcm(G, R));
          EXPECT_EQ(everywhere(fslpp.weight_storage, 1), std::gcd(G, R) == 1 && S == W);
        }
      }
    }
  }
}

/// Placement, each worker's order, and every span.
void expect_same(const Schedule& a, const Schedule& b) {
  ASSERT_EQ(a.job_count(), b.job_count());
  ASSERT_EQ(a.workers(), b.workers());
  for (const JobId id : a.order()) ASSERT_EQ(a.placement(id), b.placement(id)) << to_string(a.job(id));
  for (int w = 0; w < a.workers(); ++w)
    EXPECT_TRUE(std::ranges::equal(a.order(w), b.order(w))) << "worker " << w;
  for (const Durations& split : splits) {
    const Timeline x = simulate(a, unit_costs(split));
    const Timeline y = simulate(b, unit_costs(split));
    for (const JobId id : a.order()) {
      ASSERT_EQ(x.spans[id].start, y.spans[id].start) << to_string(a.job(id));
      ASSERT_EQ(x.spans[id].end, y.spans[id].end) << to_string(a.job(id));
    }
  }
}

TEST(Table1, LoopedWithOneGroupIsGPipe) {
  for (int S = 1; S <= 8; ++S) {
    for (int B = 1; B <= 20; ++B) {
      SCOPED_TRACE(at(S, B, 1, S));
      auto asked = request(S, B, S);
      const auto gpipe = make_schedule("gpipe", asked);
      asked.groups = 1;
      expect_same(make_schedule("lpp", asked), gpipe);
    }
  }
}

TEST(Table1, LoopedWithOneMicrobatchAGroupIsDataParallel) {
  for (int S = 1; S <= 8; ++S) {
    for (int B = 1; B <= 12; ++B) {
      SCOPED_TRACE(at(S, B, B, 1));
      auto asked = request(B, B, S);
      const auto ddp = make_schedule("ddp", asked);
      const auto fsdp = make_schedule("fsdp", asked);
      asked.groups = B;
      expect_same(make_schedule("lpp", asked), ddp);
      expect_same(make_schedule("fslpp", asked), fsdp);
    }
  }
}

/// Unifying Schemes: G = B/2 and R = S give latency S + 1, two activations and one set of weights; its W = S
/// B / 2.
TEST(Table1, AttractiveRegime) {
  for (int S = 2; S <= 8; ++S) {
    for (int B = 2; B <= 12; B += 2) {
      auto asked = request(B / 2 * S, B, S);
      asked.groups = B / 2;
      const auto schedule = make_schedule("lpp", asked);
      const Timeline timeline = simulate(schedule, unit_costs(splits[0]));
      EXPECT_NEAR(timeline.makespan, S + 1, tolerance);
      EXPECT_TRUE(everywhere(timeline.peak_stashes, 2));
    }
  }
}

}  // namespace
}  // namespace starpipe::plan
