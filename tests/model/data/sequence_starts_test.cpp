// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/data/sequences.hpp"

namespace starpipe::model {
namespace {

using Starts = std::vector<std::uint64_t>;

/// The starts of the first `samples` sequences, in the order of steps, micro-batches and sequences.
Starts first(const SequenceStarts& order, BatchSize batch, std::size_t samples) {
  Starts all;
  for (int step = 0; all.size() < samples; ++step) {
    for (int b = 0; b < batch.microbatches; ++b) {
      const Starts of = order.of(step, b);
      EXPECT_EQ(of.size(), static_cast<std::size_t>(batch.microbatch_size));
      all.insert(all.end(), of.begin(), of.end());
    }
  }
  all.resize(samples);
  return all;
}

TEST(Shuffled, AnEpochHasEachSequenceOnce) {
  // 103 tokens: 10 sequences of 10 with the target of the last, and two tokens that are left out.
  const BatchSize batch = {.microbatches = 2, .microbatch_size = 3};
  const SequenceStarts order(SampleOrder::shuffled, 103, 10, batch, 1);
  const Starts starts = first(order, batch, 40);  // epochs end within micro-batches
  std::set<Starts> epochs;
  for (std::size_t epoch = 0; epoch < 4; ++epoch) {
    const Starts of(starts.begin() + static_cast<std::ptrdiff_t>(10 * epoch),
                    starts.begin() + static_cast<std::ptrdiff_t>(10 * epoch + 10));
    EXPECT_THAT(of, ::testing::UnorderedElementsAre(0, 10, 20, 30, 40, 50, 60, 70, 80, 90));
    epochs.insert(of);
  }
  EXPECT_EQ(epochs.size(), 4U) << "each epoch has an order of its own";
}

TEST(Shuffled, DependsOnTheSeedAndThePositionAlone) {
  constexpr std::uint64_t tokens = 100'000;
  const auto starts = [&](BatchSize batch, std::uint64_t seed) {
    return first(SequenceStarts(SampleOrder::shuffled, tokens, 10, batch, seed), batch, 240);
  };
  const Starts one = starts({.microbatches = 1, .microbatch_size = 1}, 1);
  EXPECT_EQ(starts({.microbatches = 4, .microbatch_size = 2}, 1), one);
  EXPECT_EQ(starts({.microbatches = 3, .microbatch_size = 5}, 1), one);
  EXPECT_NE(starts({.microbatches = 1, .microbatch_size = 1}, 2), one);
  EXPECT_EQ(std::set<std::uint64_t>(one.begin(), one.end()).size(), one.size());
}

TEST(Sequential, FollowsTheFile) {
  // 103 tokens: 10 sequences of 10 with the target of the last, and two tokens that are left out.
  const BatchSize batch = {.microbatches = 2, .microbatch_size = 3};
  for (const std::uint64_t seed : {1, 2}) {
    const SequenceStarts order(SampleOrder::sequential, 103, 10, batch, seed);
    EXPECT_EQ(order.of(0, 0), (Starts{0, 10, 20}));
    EXPECT_EQ(order.of(0, 1), (Starts{30, 40, 50}));
    EXPECT_EQ(order.of(0, 3), (Starts{90, 90, 90})) << "micro-batches beyond the last one of a step, too";
  }
}

TEST(Sequential, AnEvaluationCountsEachSequenceOnce) {
  const auto counts = [](std::uint64_t sequences, int size, int microbatches) {
    const SequenceStarts order(SampleOrder::sequential, 10 * sequences + 1, 10, {.microbatch_size = size}, 1);
    std::map<std::uint64_t, int> times;
    const auto all = order.evaluated(microbatches);
    for (std::size_t m = 0; m < all.size(); ++m) {
      const Starts starts = order.of(0, static_cast<int>(m));
      const std::set<std::uint64_t> different(starts.begin(), starts.end());
      EXPECT_EQ(different.size(), all[m]);
      for (const std::uint64_t start : different) {
        EXPECT_EQ(std::ranges::count(starts, start) * static_cast<std::ptrdiff_t>(all[m]), size);
        EXPECT_EQ(++times[start], 1);
      }
    }
    return all;
  };
  using Counts = std::vector<std::uint64_t>;
  EXPECT_EQ(counts(5, 2, 3), (Counts{2, 2, 1}));
  EXPECT_EQ(counts(5, 2, 100), (Counts{2, 2, 1})) << "more than the file has";
  EXPECT_EQ(counts(5, 2, 2), (Counts{2, 2})) << "the first ones";
  EXPECT_EQ(counts(6, 2, 3), (Counts{2, 2, 2}));
  EXPECT_EQ(counts(1, 4, 1), (Counts{1}));
  EXPECT_EQ(counts(7, 4, 2), (Counts{4, 2, 1}));
  EXPECT_EQ(counts(5, 6, 1), (Counts{3, 2}));
  EXPECT_EQ(counts(6, 7, 1), (Counts{1, 1, 1, 1, 1, 1}));
}

TEST(Shuffled, AFileOfOneSequence) {
  for (const std::uint64_t tokens : {11, 20}) {
    const SequenceStarts order(SampleOrder::shuffled, tokens, 10, {.microbatches = 2, .microbatch_size = 2},
                               1);
    EXPECT_EQ(order.of(5, 1), (Starts{0, 0})) << tokens;
  }
  const SequenceStarts two(SampleOrder::shuffled, 21, 10, {.microbatches = 1, .microbatch_size = 2}, 1);
  EXPECT_THAT(two.of(0, 0), ::testing::UnorderedElementsAre(0, 10));
}

TEST(Shuffled, LateStepsOfLargeFiles) {
  constexpr std::uint64_t tokens = std::uint64_t{1} << 40U;
  const SequenceStarts order(SampleOrder::shuffled, tokens, 1024,
                             {.microbatches = 1 << 20, .microbatch_size = 1 << 4}, 1);
  for (const std::uint64_t start : order.of(2'000'000'000, 1'000'000)) {
    EXPECT_EQ(start % 1024, 0U);
    EXPECT_LT(start, tokens - 1024);
  }
}

}  // namespace
}  // namespace starpipe::model
