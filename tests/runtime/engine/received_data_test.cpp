// SPDX-License-Identifier: Apache-2.0
// The memory of data that ranks receive.
#include "runtime/engine/received_data.hpp"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/engine/memory_need.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

plan::Schedule schedule_of(const char* name, const model::Network& network, int workers) {
  return plan::make_schedule(name, {.workers = workers, .microbatches = 4, .graph = network.graph});
}

// Each segment of another rank has a buffer that is large enough and that no earlier segment still uses. A
// rank that receives halves and less has twice as many.
void expect_buffers(const TaskGraph& graph, const std::vector<int>& rank_of) {
  const std::vector<ReceivedData> all = received_data(graph, rank_of);
  std::vector<std::set<std::size_t>> read(all.size());
  for (std::size_t t = 0; t < graph.tasks().size(); ++t) {
    const Task& task = graph.tasks()[t];
    const bool sums = task.kind == TaskKind::add || task.kind == TaskKind::copy;
    if (task.data.empty() || (!sums && !is_stash_copy(task.kind))) continue;
    const std::size_t source = task.data[0].datum;
    if (!sums && graph.data()[source].kind != DataKind::stash) continue;
    const auto rank = index(rank_of[index(task.worker)]);
    if (rank_of[index(graph.data()[source].worker)] == rank_of[index(task.worker)]) continue;
    read[rank].insert(source);
    const ReceivedData::Turn& segment = all[rank].turns.at(source);
    EXPECT_LE(segment.first_use, t);
    EXPECT_GE(segment.last_use, t);
    EXPECT_GE(graph.data()[all[rank].buffers[segment.buffer]].size, graph.data()[source].size);
    if (!segment.previous) continue;
    const ReceivedData::Turn& previous = all[rank].turns.at(*segment.previous);
    EXPECT_EQ(previous.buffer, segment.buffer);
    EXPECT_LT(previous.last_use, segment.first_use);
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    EXPECT_EQ(all[r].turns.size(), read[r].size());
    const auto is_stash = [&](std::size_t d) { return graph.data()[d].kind == DataKind::stash; };
    const auto stashes = static_cast<std::size_t>(std::ranges::count_if(read[r], is_stash));
    std::set<std::pair<int, int>> stash_buffers;
    for (const std::size_t d : read[r]) {
      if (is_stash(d)) stash_buffers.emplace(graph.data()[d].stage, graph.data()[d].worker);
    }
    const bool large = std::ranges::any_of(read[r], [&](std::size_t d) {
      return !is_stash(d) && 2 * graph.data()[d].size > graph.data()[graph.segment(d).from].size + 1;
    });
    const std::size_t buffers = ReceivedData::max_buffers * (large ? 1 : 2);
    EXPECT_EQ(all[r].buffers.size(), std::min(buffers, read[r].size() - stashes) + stash_buffers.size());
    std::size_t first = 0;
    for (const auto& [datum, segment] : all[r].turns) first += segment.previous ? 0U : 1U;
    EXPECT_EQ(first, all[r].buffers.size()) << "every other segment waits for the one before it";
  }
}

TEST(ReceivedData, SegmentsUseAFewBuffersInTurn) {
  for (const std::string name : {"1f1b", "ddp", "fsdp", "chimera"}) {
    SCOPED_TRACE(name);
    for (const bool tied : {false, true}) {
      const model::Network network = tied ? tied_gpt(4) : tiny_gpt(4);
      const TaskGraph graph(schedule_of(name.c_str(), network, 4), network, adamw);
      expect_buffers(graph, {0, 1, 2, 3});
      expect_buffers(graph, {0, 0, 1, 1});
      expect_buffers(graph, {0, 0, 0, 0});
    }
  }
}

TEST(ReceivedData, StashesUseAFewBuffersInTurn) {
  for (const std::string name : {"1f1b", "zb-h1", "chimera"}) {
    SCOPED_TRACE(name);
    const model::Network network = tiny_gpt(4);
    const plan::Schedule moved = schedule_of(name.c_str(), network, 4).with_homes([](int s, int b) {
      return plan::Home::at((s + b) % 4);
    });
    const TaskGraph graph(moved, network, adamw);
    expect_buffers(graph, {0, 1, 2, 3});
    expect_buffers(graph, {0, 0, 1, 1});
    const std::vector<ReceivedBytes> received = received_bytes(graph, std::vector<int>{0, 1, 2, 3}, 100);
    for (const ReceivedBytes& of_rank : received) EXPECT_GT(of_rank.stashes, 0U);
  }
}

/// Under fsdp worker w holds the weights of stage w, and every worker computes all stages.
TEST(ReceivedData, BytesOfFsdpByHand) {
  const model::Network network = tiny_gpt(4);
  const TaskGraph graph(schedule_of("fsdp", network, 4), network, adamw);
  std::vector<std::uint64_t> weights;
  std::uint64_t all = 0;
  for (const model::ParameterSet& set : network.sets()) all += weights.emplace_back(set.size * sizeof(float));
  const std::vector<ReceivedBytes> received = received_bytes(graph, std::vector<int>{0, 1, 2, 3}, 100);
  for (std::size_t r = 0; r < 4; ++r) EXPECT_EQ(received[r].weights, all - weights[r]) << r;
  // Stage 0 comes whole from worker 1, and in halves from workers 2 and 3. Each of the two buffers has the
  // size of the largest segment in it.
  EXPECT_LE(received[0].segments, 2 * std::ranges::max(weights));
  EXPECT_GE(received[0].segments, weights[0]);
  for (const ReceivedBytes& bytes : received_bytes(graph, std::vector<int>{0, 0, 0, 0}, 100)) {
    EXPECT_EQ(bytes.weights + bytes.segments + bytes.others, 0U);
  }
}

TEST(ReceivedData, TheLargestOfARank) {
  const model::Network network = tiny_gpt(2);
  const TaskGraph graph(schedule_of("1f1b", network, 2), network, adamw);
  EXPECT_EQ(largest_received(graph, std::vector<int>{0, 1}),
            std::vector<std::uint64_t>(2, network.sizes().front().activation));
  EXPECT_EQ(largest_received(graph, std::vector<int>{0, 0}), std::vector<std::uint64_t>{0});
}

/// A rank's main memory has all that it receives; a worker with memory of its own has it while it needs it.
TEST(ReceivedData, IsInTheNeedOfARank) {
  const model::Network network = tiny_gpt(4);
  const plan::Schedule schedule = schedule_of("ddp", network, 4);
  plan::Costs costs;
  costs.sizes = network.sizes();
  const plan::Timeline timeline = plan::simulate(schedule, costs);
  WorkerDevices ranks{.devices = {0, 1, 2, 3}, .on_gpu = {}, .rank_of = {0, 1, 2, 3}, .window = 100};
  const auto needs = memory_need(schedule, network, adamw, costs, timeline, ranks);
  const std::uint64_t parameters = network.parameter_count() * sizeof(float);
  const auto received = received_bytes(TaskGraph(schedule, network, adamw), ranks.rank_of, ranks.window);
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(needs[r].weights, parameters);
    EXPECT_EQ(needs[r].gradients, parameters + received[r].segments);
    EXPECT_GT(received[r].segments, 0U);
    EXPECT_LT(received[r].segments, parameters);
  }
  // A GPU has its own memory, and the rank's main memory is the home of what lasts.
  ranks.devices = {4, 5, 6, 7};
  ranks.on_gpu = {true, true, true, true};
  const auto homes = memory_need(schedule, network, adamw, costs, timeline, ranks);
  EXPECT_EQ(homes[0].weights, parameters);
  EXPECT_EQ(homes[0].gradients, parameters + received[0].segments);
  EXPECT_EQ(homes[0].optimizer, 2 * parameters);
  EXPECT_EQ(homes[0].stashes, 0U);
  EXPECT_EQ(homes[4].weights, parameters);
}

}  // namespace
}  // namespace starpipe::runtime
