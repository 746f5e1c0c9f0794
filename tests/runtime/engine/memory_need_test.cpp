// SPDX-License-Identifier: Apache-2.0
// The predicted memory need of workers.
#include "runtime/engine/memory_need.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/setup/experiment.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/optimizer.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/runtime/config/config.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Schedule;

std::vector<WorkerMemory> need(const Schedule& schedule, const model::Network& network,
                               const model::OptimizerConfig& optimizer = plain_sgd, plan::Costs costs = {}) {
  costs.sizes = network.sizes();
  return memory_need(schedule, network, optimizer, costs, plan::simulate(schedule, costs));
}

/// A verdict on four parameters: five doubles.
constexpr std::uint64_t verdict = 5 * 8;

/// Two linear stages, 4 columns, 3 rows: 80 bytes of weights per stage, 48 per activation.
TEST(MemoryNeed, OfTwoStagesByHand) {
  const model::Network network = dag_network(plan::StageGraph::chain(2));
  const std::uint64_t stash0 = network.sizes()[0].stash;
  const std::uint64_t stash1 = network.sizes()[1].stash;
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = 2, .microbatches = 3});
  const auto [first, last] = std::pair(need(schedule, network, adamw)[0], need(schedule, network, adamw)[1]);
  EXPECT_EQ(first.weights, 80U);
  EXPECT_EQ(first.gradients, 80U);
  EXPECT_EQ(first.optimizer, 160U);
  EXPECT_EQ(first.stashes, 3 * stash0);
  // Its inputs, and the output of the third F while that runs: the first two outputs have been sent. Later a
  // gradient takes as much.
  EXPECT_EQ(first.activations, 3U * 48 + 48 + verdict);
  EXPECT_EQ(first.workspace, network.stages[0].scratch_size() * sizeof(float));
  EXPECT_EQ(last.stashes, 3 * stash1);
  // Targets and losses, and the activation that the third F reads.
  EXPECT_EQ(last.activations, 3U * 48 + 3 * 4 + 48 + verdict);
  EXPECT_EQ(need(schedule, network, plain_sgd)[0].optimizer, 0U);
}

// Cores use memory again for data of the same size only.
TEST(MemoryNeed, KeptBeyondThePeak) {
  const auto need_of_first = [](const char* name, int workers) {
    plan::Costs costs;
    const Schedule schedule = plan::make_schedule(name, {.workers = workers, .microbatches = 6});
    const model::Network network = tiny_gpt(schedule.stages());
    costs.sizes = network.sizes();
    return memory_need_over_time(schedule, network, adamw, costs, plan::simulate(schedule, costs)).front();
  };
  // One worker: stash, gradients for W and workspace are there together, once in each micro-batch.
  EXPECT_EQ(need_of_first("1f1b", 1).kept, 0U);
  EXPECT_EQ(need_of_first("zb-h1", 1).kept, 0U);
  // Two stages on a worker have stashes of two sizes, and not the most of both at once.
  for (const char* name : {"v-half", "v-min", "interleaved-1f1b"}) {
    const DeviceNeed need = need_of_first(name, 2);
    EXPECT_GT(need.kept, 0U) << name;
    EXPECT_LT(need.kept, need.peak.stashes / 2) << name;
  }
}

TEST(MemoryNeed, OverTimeOfTwoStagesByHand) {
  const model::Network network = dag_network(plan::StageGraph::chain(2));
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = 2, .microbatches = 3});
  plan::Costs costs;
  costs.sizes = network.sizes();
  const auto needs = memory_need_over_time(schedule, network, adamw, costs, plan::simulate(schedule, costs));
  const std::uint64_t lasting = 80U + 80 + 160 + verdict + network.stages[0].scratch_size() * sizeof(float);
  const std::uint64_t stash = network.sizes()[0].stash;
  const auto at = [&](double time) {
    std::uint64_t bytes = 0;
    for (const MemoryLevel& level : needs[0].over_time) {
      if (level.time <= time) bytes = level.bytes;
    }
    return bytes;
  };
  // Worker 0 runs F from 0 to 3. Inputs are there all the time. An output is there until it has been sent.
  EXPECT_EQ(at(0.5), lasting + stash + 3 * 48 + 48);
  EXPECT_EQ(at(1.5), lasting + 2 * stash + 3 * 48 + 48);
  EXPECT_EQ(at(2.5), lasting + 3 * stash + 3 * 48 + 48);
  EXPECT_EQ(at(3.5), lasting + 3 * stash + 3 * 48);
}

// The largest level is the peak, whether the levels are exact or belong to parts of the step.
TEST(MemoryNeed, OverTimeHasThePeak) {
  const model::Network network = tiny_gpt(4);
  plan::Costs costs = costs_of(network);
  costs.links = plan::Link{.alpha = 0.25};
  for (const int microbatches : {4, 500}) {
    for (const char* name : {"1f1b", "fsdp", "zb-h1", "v-half"}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << microbatches);
      const Schedule schedule =
          plan::make_schedule(name, {.workers = std::string_view(name) == "v-half" ? 2 : 4,
                                     .microbatches = microbatches,
                                     .graph = network.graph});
      const plan::Timeline timeline = plan::simulate(schedule, costs);
      const auto needs = memory_need_over_time(schedule, network, adamw, costs, timeline);
      const auto peaks = memory_need(schedule, network, adamw, costs, timeline);
      ASSERT_EQ(needs.size(), peaks.size());
      for (std::size_t w = 0; w < needs.size(); ++w) {
        EXPECT_EQ(needs[w].peak.total(), peaks[w].total());
        const auto& levels = needs[w].over_time;
        EXPECT_LE(levels.size(), max_levels);
        EXPECT_EQ(std::ranges::max_element(levels, {}, &MemoryLevel::bytes)->bytes, peaks[w].total());
        EXPECT_EQ(levels.front().time, 0);
        EXPECT_TRUE(std::ranges::is_sorted(levels, {}, &MemoryLevel::time));
        EXPECT_LE(levels.back().time, plan::first_start(timeline) + timeline.makespan);
      }
    }
  }
}

std::uint64_t sum_of(const std::vector<WorkerMemory>& needs) {
  std::uint64_t sum = 0;
  for (const WorkerMemory& need : needs) sum += need.total();
  return sum;
}

/// Two towers that share their weights, each on a worker of its own, and the join on a third. The first
/// tower's worker holds both sets of 80 bytes. The second one fetches copies and has sums of its own.
TEST(MemoryNeed, OfSharedWeightsByHand) {
  const model::Network network = two_towers();
  plan::ScheduleSpec spec;
  spec.graph = network.graph;
  spec.microbatches = 1;
  spec.workers = 3;
  spec.placement = [](const plan::Job& job) {
    const int worker = job.stage / 2;
    return plan::Placement{.weights = worker, .compute = worker};
  };
  spec.priority = [](const plan::Job& job) {
    return job.pass == plan::Pass::F ? job.stage : 2 * 5 - job.stage;
  };
  const auto needs = need(Schedule(spec), network, adamw);
  constexpr std::uint64_t of_join = (8 * 4 + 4) * 4;
  EXPECT_EQ(needs[0].weights, 2U * 80);
  EXPECT_EQ(needs[0].optimizer, 2U * 160);
  EXPECT_EQ(needs[1].optimizer, 0U);
  EXPECT_EQ(needs[1].gradients, 2U * 80);
  EXPECT_GE(needs[1].weights, 80U) << "copies while its jobs run";
  EXPECT_LE(needs[1].weights, 2U * 80);
  EXPECT_EQ(needs[2].weights, of_join);
  EXPECT_EQ(needs[2].optimizer, 2 * of_join);
}

// Workers of one device share their data: with fsdp there are no copies of weights.
TEST(MemoryNeed, OfWorkersOnOneDevice) {
  const model::Network network = tiny_gpt(4);
  plan::Costs costs = costs_of(network);
  costs.links = plan::Link{.alpha = 0.25};
  for (const char* name : {"1f1b", "fsdp", "zb-h1", "ddp"}) {
    SCOPED_TRACE(name);
    const Schedule schedule =
        plan::make_schedule(name, {.workers = 4, .microbatches = 8, .graph = network.graph});
    const plan::Timeline timeline = plan::simulate(schedule, costs);
    const auto on = [&](std::vector<int> devices) {
      return memory_need(schedule, network, adamw, costs, timeline,
                         {.devices = std::move(devices), .on_gpu = {}});
    };
    const auto apart = on({});
    const auto pairs = on({0, 0, 1, 1});
    const auto one = on({0, 0, 0, 0});
    ASSERT_EQ(pairs.size(), 2U);
    ASSERT_EQ(one.size(), 1U);
    EXPECT_LE(pairs[0].total(), apart[0].total() + apart[1].total());
    EXPECT_LE(sum_of(one), sum_of(pairs));
    std::vector<WorkerMemory> swapped = on({1, 0, 3, 2});
    for (std::size_t w = 0; w < 4; ++w) EXPECT_EQ(swapped[w ^ 1U].total(), apart[w].total()) << w;
    std::uint64_t weights = 0;
    for (const plan::StageSizes& size : network.sizes()) weights += size.weights;
    const bool replicas = std::string_view(name) == "ddp";
    EXPECT_EQ(one[0].weights, replicas ? 4 * weights : weights);
    if (std::string_view(name) == "fsdp") {
      EXPECT_GT(sum_of(apart), sum_of(one) + weights);
    }
  }
}

/// An evaluation adds its inputs, targets and losses, which last, and working memory for a stash of one
/// layer. It takes place between steps, so the activations of both do not add up.
TEST(MemoryNeed, OfEvaluations) {
  const model::Network network = dag_network(plan::StageGraph::chain(2));
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = 2, .microbatches = 3});
  const plan::Costs costs = costs_of(network);
  const plan::Timeline timeline = plan::simulate(schedule, costs);
  const auto steps = memory_need(schedule, network, adamw, costs, timeline);
  const auto both = memory_need(schedule, network, adamw, costs, timeline, {}, {.evaluated = 5});
  EXPECT_EQ(both[0].activations, steps[0].activations + 5 * 48);
  EXPECT_EQ(both[1].activations, steps[1].activations + 5 * 48 + 5 * 4);
  for (const int w : {0, 1}) {
    EXPECT_EQ(both[index(w)].stashes, steps[index(w)].stashes);
    EXPECT_EQ(both[index(w)].workspace,
              network.stages[index(w)].scratch_size_without_stash() * sizeof(float));
  }
  // Alone it needs no more than weights and its data.
  const auto alone = evaluation_memory_need(schedule, network, costs, 5);
  EXPECT_EQ(alone[0].weights, 80U);
  EXPECT_EQ(alone[0].optimizer + alone[0].gradients + alone[0].stashes, 0U);
  EXPECT_EQ(alone[0].activations, 5U * 48 + 48);
  EXPECT_EQ(alone[1].activations, 5U * 48 + 5 * 4 + 48);
}

/// A slow worker behind a fast one: no more than 2 x 3 micro-batches are on their way.
TEST(MemoryNeed, OfActivationsThatWaitInAnEvaluation) {
  const model::Network network = dag_network(plan::StageGraph::chain(2));
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = 2, .microbatches = 3});
  plan::Costs costs = costs_of(network);
  costs.durations = {{1, 1, 1}, {50, 1, 1}};
  const std::uint64_t there = 100 * (48 + 4);
  EXPECT_EQ(evaluation_memory_need(schedule, network, costs, 100)[1].activations, there + 6 * 48);
}

/// The same in bf16: 40 bytes of weights besides 80 for the optimizer, padded to 16, and 32 of an activation.
TEST(MemoryNeed, OfTwoStagesInBf16) {
  const model::Network network = dag_network(plan::StageGraph::chain(2), false, model::Precision::bf16);
  const plan::StageSizes sizes = network.sizes()[0];
  EXPECT_EQ(sizes.activation, 32U);
  EXPECT_EQ(sizes.stash, 2U * 32) << "the inputs of two layers";
  EXPECT_EQ(sizes.weights, 48U);
  EXPECT_EQ(sizes.master, 80U);
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = 2, .microbatches = 3});
  const WorkerMemory first = need(schedule, network, adamw)[0];
  EXPECT_EQ(first.weights, 48U + 80);
  EXPECT_EQ(first.gradients, 80U);
  EXPECT_EQ(first.optimizer, 160U);
  EXPECT_EQ(first.stashes, 3U * 2 * 32);
  EXPECT_EQ(first.activations, 3U * 32 + 32 + verdict);
}

/// On a CPU the kernels need room for widened data, or for oneDNN; on a GPU cuBLAS needs room for parts of
/// products.
TEST(MemoryNeed, TheWorkspaceIsThatOfTheDevice) {
  const model::Network network = tiny_gpt(2, model::Precision::bf16);
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = 2, .microbatches = 3});
  const plan::Costs costs = costs_of(network);
  for (const bool on_gpus : {false, true}) {
    const auto memory = memory_need(schedule, network, plain_sgd, costs, plan::simulate(schedule, costs),
                                    {.devices = {}, .on_gpu = {on_gpus, on_gpus}});
    // A GPU adds up squares there; a core does not. The second stage has more parameters.
    std::vector<std::size_t> sizes;
    for (const model::Parameter& parameter : network.stages[1].parameters())
      sizes.push_back(parameter.size());
    const std::size_t of_norm = on_gpus ? model::norm_scratch_words(sizes) : 0;
    EXPECT_EQ(memory[0].workspace, (network.stages[0].scratch_size(on_gpus) + of_norm) * sizeof(float));
  }
  EXPECT_NE(network.stages[0].scratch_size(false), network.stages[0].scratch_size(true));
}

/// A GPU has the inputs and targets of the jobs that read them, and fetches the inputs and targets of the
/// next two jobs.
TEST(MemoryNeed, InputsComeToAGpuWhenTheyAreRead) {
  const model::Network network = dag_network(plan::StageGraph::chain(2));
  const plan::Costs costs = costs_of(network);
  const auto activations = [&](const char* name, int microbatches, int worker, bool recompute = false) {
    const Schedule schedule =
        plan::make_schedule(name, {.workers = 2,
                                   .microbatches = microbatches,
                                   .homes = {recompute ? plan::Home::none : plan::Home::worker}});
    return memory_need(schedule, network, plain_sgd, costs, plan::simulate(schedule, costs),
                       {.devices = {}, .on_gpu = {true, true}})[index(worker)]
        .activations;
  };
  constexpr std::uint64_t size = 48;
  constexpr std::uint64_t loss = 4;
  // Stashes are most in the last F, which reads an input and writes an output; on the second worker it reads
  // a target, too.
  EXPECT_EQ(activations("gpipe", 3, 0), 2 * size);
  EXPECT_EQ(activations("gpipe", 20, 0), 2 * size);
  EXPECT_EQ(activations("gpipe", 3, 1), 2 * size + 3 * loss);
  constexpr std::uint64_t word = 4;
  EXPECT_EQ(activations("gpipe", 3, 0, true), 3 * size + 3 * word)
      << "R reads an input again, and waits for F";
  // An F with the input of the next F, which comes after a B; and a gradient.
  EXPECT_EQ(activations("1f1b", 20, 0), 3 * size);
}

// A stash that a GPU copies to the host has memory there from the start of O to the end of BW, and none on
// the GPU between O and L.
TEST(MemoryNeed, OfStashesOnTheHost) {
  const model::Network network = dag_network(plan::StageGraph::chain(2));
  plan::Costs costs = costs_of(network);
  costs.set_copy(0.5);
  const Schedule schedule = plan::make_schedule(
      "gpipe", {.workers = 2, .microbatches = 5, .homes = {plan::Home::host, plan::Home::worker}});
  const plan::Timeline timeline = plan::simulate(schedule, costs);
  constexpr int host = 0;
  constexpr int gpu = 1;
  const std::vector<WorkerMemory> need = memory_need(
      schedule, network, plain_sgd, costs, timeline,
      {.devices = {gpu, gpu + 1}, .on_gpu = {true, true}, .rank_of = {host, host}, .window = 100});
  // With a stash at each start of O, since nothing else comes to the host.
  int most = 0;
  for (int b = 0; b < 5; ++b) {
    const double now = timeline.spans[schedule.offload(0, b)].start;
    int waiting = 0;
    for (int other = 0; other < 5; ++other) {
      const bool has_come = timeline.spans[schedule.offload(0, other)].start <= now;
      waiting += has_come && timeline.spans[schedule.weight_gradient(0, other)].end > now ? 1 : 0;
    }
    most = std::max(most, waiting);
  }
  EXPECT_EQ(most, 5);
  EXPECT_EQ(need[host].stashes, index(most) * network.sizes()[0].stash);
  EXPECT_EQ(need[gpu].stashes, 2 * network.sizes()[0].stash) << "one that F makes, one that O copies";
  EXPECT_EQ(need[gpu + 1].stashes, 5 * network.sizes()[1].stash);
}

// GPUs have no verdicts, but for StarPU's copy where passes precede one.
TEST(MemoryNeed, OfVerdicts) {
  const model::Network network = dag_network(plan::StageGraph::chain(2));
  const Schedule schedule = plan::make_schedule("gpipe", {.workers = 2, .microbatches = 3});
  const plan::Costs costs = costs_of(network);
  const auto activations = [&](const StepRules& rules, bool on_gpus, int worker) {
    return memory_need(schedule, network, plain_sgd, costs, plan::simulate(schedule, costs),
                       {.devices = {}, .on_gpu = {on_gpus, on_gpus}}, rules)[index(worker)]
        .activations;
  };
  for (const int worker : {0, 1}) {
    EXPECT_EQ(activations({}, false, worker), activations({.has_norm = false}, false, worker) + verdict);
    const std::uint64_t of_gpu = activations({.has_norm = false}, true, worker);
    EXPECT_EQ(activations({}, true, worker), of_gpu);
    EXPECT_EQ(activations({.can_skip = true}, true, worker), of_gpu + verdict);
  }
}

TEST(MemoryNeed, CountsWhatWaitsToBeRead) {
  // Worker 0 runs all forward passes first; worker 1 runs each F with its B right behind.
  const Schedule schedule({.name = "eager",
                           .graph = plan::StageGraph::chain(2),
                           .microbatches = 6,
                           .workers = 2,
                           .placement =
                               [](const plan::Job& job) {
                                 return plan::Placement{job.stage, job.stage};
                               },
                           .priority =
                               [](const plan::Job& job) {
                                 const bool forward = job.pass == plan::Pass::F;
                                 return job.stage == 1 ? 2 * job.microbatch + (forward ? 0 : 1)
                                                       : job.microbatch + (forward ? 0 : 6);
                               }});
  const model::Network network = dag_network(schedule.graph());
  const std::uint64_t there = 6 * 48 + 6 * 4 + verdict;  // targets and losses, too
  plan::Costs costs;
  costs.durations = {{1, 1, 1}, {10, 1, 1}};
  EXPECT_EQ(need(schedule, network, plain_sgd, costs)[1].activations, there + 6 * 48)
      << "all inputs are there";
  costs.durations = {{10, 1, 1}, {1, 1, 1}};
  EXPECT_EQ(need(schedule, network, plain_sgd, costs)[1].activations, there + 48) << "it waits for each";
}

TEST(MemoryNeed, FollowsFromTheSchedule) {
  const model::Network network = tiny_gpt(4);
  const auto of = [&](const char* name, bool recompute = false) {
    return need(plan::make_schedule(name, {.workers = 4,
                                           .microbatches = 8,
                                           .homes = {recompute ? plan::Home::none : plan::Home::worker}}),
                network, adamw);
  };
  const auto gpipe = of("gpipe");
  const auto fewer = of("1f1b");
  EXPECT_EQ(gpipe[0].stashes, 8 * network.sizes()[0].stash);
  EXPECT_EQ(fewer[0].stashes, 4 * network.sizes()[0].stash);
  EXPECT_LT(fewer[0].total(), gpipe[0].total());
  EXPECT_LT(of("gpipe", true)[0].total(), gpipe[0].total())
      << "recomputation keeps inputs instead of stashes";

  const std::uint64_t all = network.parameter_count() * sizeof(float);
  const auto replicated = of("ddp");
  const auto sharded = of("fsdp");
  EXPECT_EQ(replicated[1].weights, all);
  EXPECT_EQ(replicated[1].optimizer, 2 * all);
  EXPECT_EQ(sharded[1].optimizer, 2 * network.sizes()[1].weights);
  EXPECT_EQ(sharded[1].weights, all) << "its own, and those it has fetched and still needs";
}

/// The need lies between the stashes that `simulate` counts and the sum of all data.
TEST(MemoryNeed, IsNoLessThanThePeakOfStashes) {
  std::mt19937_64 random(7);
  for (int run = 0; run < 300; ++run) {
    const Schedule drawn(plan::testing::random_spec(random, {.copies = true, .sound_priority = 1}));
    const Schedule schedule = run % 3 == 0 ? drawn.with_recomputation() : drawn;
    if (!plan::check(schedule).ok()) continue;
    SCOPED_TRACE(::testing::Message() << "run " << run);
    const model::Network network = dag_network(schedule.graph());
    plan::Costs costs = plan::testing::random_costs(random, schedule.stages());
    costs.sizes = network.sizes();
    const plan::Timeline timeline = plan::simulate(schedule, costs);
    const TaskGraph graph(schedule, network, adamw);
    std::vector<std::uint64_t> lasting(index(schedule.workers()));
    std::uint64_t everything = 0;
    for (const Datum& datum : graph.data()) {
      const std::uint64_t bytes = datum.size * sizeof(float);
      everything += bytes * static_cast<std::uint64_t>(schedule.workers());
      if (!is_temporary(datum.kind)) lasting[index(datum.worker)] += bytes;
    }
    const auto needs = memory_need(schedule, network, adamw, costs, timeline);
    for (std::size_t w = 0; w < needs.size(); ++w) {
      const std::uint64_t data = needs[w].total() - needs[w].workspace;
      EXPECT_GE(data, lasting[w] + timeline.peak_stash_bytes[w]) << "worker " << w;
      EXPECT_LE(data, everything) << "worker " << w;
    }
    if (HasFailure()) return;
  }
}

/// Times of 0 do not tell which data are there together; the order of the jobs does.
TEST(MemoryNeed, OfPassesWithoutLength) {
  for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
    const Schedule schedule = plan::make_schedule(name, {.workers = 4, .microbatches = 6});
    const model::Network network = dag_network(schedule.graph());
    const auto without = need(schedule, network, adamw, {.durations = {{0, 0, 0}}});
    const auto with = need(schedule, network, adamw, {.durations = {{1, 1, 1}}});
    for (std::size_t w = 0; w < with.size(); ++w) EXPECT_EQ(without[w].total(), with[w].total()) << name;
  }
}

}  // namespace
}  // namespace starpipe::runtime
