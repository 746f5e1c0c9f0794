// SPDX-License-Identifier: Apache-2.0
// The engine on StarPU and StarPU-MPI, on any number of ranks. Under any schedule it trains as the reference
// does; under an ordered schedule it gives the same bits as a sequential run of the tasks; its measurements
// equal the predictions of `plan`. Every test is collective: no rank may return early from a test.
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <starpu_mpi.h>

#include "model/reference.hpp"
#include "model/verification.hpp"
#include "runtime/engine/engine_run.hpp"
#include "runtime/engine/relays.hpp"
#include "runtime/sequential_run.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "support/datasets.hpp"
#include "support/floats.hpp"
#include "support/network_schedules.hpp"
#include "support/networks.hpp"
#include "support/schedules.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;

// StarPU-MPI may free a group of sends while the thread that drops the datum reads it.
TEST(Engine, SendsToSeveralRanksAreNotGrouped) {
  if (session->mpi().ranks() > 2) {
    EXPECT_EQ(starpu_mpi_coop_sends_get_use(), 0);
  }
}

TEST(Engine, NamedSchedulesOrdered) {
  for (const NamedCase& c : named_cases(workers(), 6)) {
    for (const bool is_split : {false, true}) {
      const Schedule schedule = is_split ? split(c.schedule) : c.schedule;
      SCOPED_TRACE(schedule.name());
      const Outcome run = expect_sound(schedule, c.network, 3);
      if (our_policy()) expect_peaks(run, schedule, c.network);
    }
  }
}

// Slices read each other's keys and values, on one worker and on several. Three slices of 16 tokens differ.
TEST(Engine, Slices) {
  for (const auto& of : {std::pair("gpt", 3), std::pair("llama", 2), std::pair("gpt", 4)}) {
    const std::string kind = of.first;
    const int slices = of.second;
    const auto network = [&](int stages) { return sliced(kind, stages, slices); };
    for (const NamedCase& c : named_cases(workers(), 3, network, slices)) {
      for (const bool is_split : {false, true}) {
        const Schedule schedule = is_split ? split(c.schedule) : c.schedule;
        SCOPED_TRACE(fmt::format("{}, {} slices of {}", schedule.name(), slices, kind));
        const Outcome run = expect_sound(schedule, c.network, 2);
        if (our_policy()) expect_peaks(run, schedule, c.network);
      }
    }
    for (const model::Precision precision : {model::Precision::fp32, model::Precision::bf16}) {
      const model::Network scattered_network = sliced(kind, 2, slices, {}, precision);
      expect_sound(
          slices_everywhere(plan::make_schedule(
              "ddp",
              {.workers = workers(), .microbatches = 3, .slices = slices, .graph = scattered_network.graph})),
          scattered_network, 2);
    }
    const model::Network tied = sliced(kind, workers(), slices, {{"tied", true}});
    const Schedule chain = plan::make_schedule(
        "gpipe", {.workers = workers(), .microbatches = 3, .slices = slices, .graph = tied.graph});
    const Outcome run = expect_sound(slices_everywhere(chain), tied, 2);
    if (our_policy()) expect_peaks(run, slices_everywhere(chain), tied);
  }
}

// Shards of half-blocks, and of the vocabulary, that have slices.
TEST(Engine, SlicesOfShards) {
  for (const int vocabulary : {1, 3}) {
    const int pairs = std::max(workers() / 2, 1);
    const model::Network network = sharded_gpt(pairs, {2}, model::Precision::fp32, vocabulary, 3);
    if (workers() == 1) continue;
    for (const char* name : {"1f1b", "gpipe", "ddp"}) {
      SCOPED_TRACE(name);
      const plan::ScheduleRequest request{.workers = pairs,
                                          .microbatches = 4,
                                          .slices = 3,
                                          .graph = plan::StageGraph::chain(network.whole_stages())};
      const Schedule schedule = sharded_schedule(plan::make_schedule(name, request), network, 2);
      const Outcome run = expect_sound(schedule, network, 2);
      if (our_policy()) expect_peaks(run, schedule, network);
    }
  }
}

// One table for the embedding and the head, on every schedule.
TEST(Engine, SharedParametersUnderNamedSchedules) {
  for (const NamedCase& c : named_cases(workers(), 6, tied_gpt)) {
    for (const bool is_split : {false, true}) {
      const Schedule schedule = is_split ? split(c.schedule) : c.schedule;
      SCOPED_TRACE(schedule.name());
      const Outcome run = expect_sound(schedule, c.network, 2);
      if (our_policy()) expect_peaks(run, schedule, c.network);
    }
  }
}

// Two workers hold the weights. From four ranks on, their ranks would send more than a rank receives, so the
// ranks pass segments on to each other.
TEST(Engine, LargeWeightsComeByRelays) {
  for (const model::Precision precision : {model::Precision::fp32, model::Precision::bf16}) {
    model::ModelConfig config = small("gpt", {{"layers", 4}, {"hidden", 128}});
    config.precision = precision;
    const model::Network network = model::build_network(config, 1, 2);
    const Schedule schedule =
        plan::make_schedule("fsdp", {.workers = workers(), .microbatches = 4, .graph = network.graph});
    std::vector<int> rank_of;
    for (int w = 0; w < workers(); ++w) rank_of.push_back(session->map().rank_of(w));
    const std::size_t relayed = session->mpi().ranks() > 3 ? 2 : 0;
    EXPECT_EQ(relayed_weights(TaskGraph(schedule, network, {}), schedule, rank_of).size(), relayed);
    expect_sound(schedule, network, 3);
    expect_sound(schedule.with_recomputation(), network, 2);
  }
}

// Each worker that runs a stage of a tower adds to a sum for both towers.
TEST(Engine, SharedParametersOfTwoTowers) {
  for (const model::Precision precision : {model::Precision::fp32, model::Precision::bf16}) {
    const model::Network towers = two_towers(precision);
    const model::Network llama = tiny_llama(4, precision, true);
    for (const model::Network* network : {&towers, &llama}) {
      for (const bool is_split : {false, true}) {
        const Schedule schedule = scattered(network->graph, workers(), 5, is_split);
        SCOPED_TRACE(network->config.kind + (is_split ? " split" : " fused"));
        expect_sound(schedule, *network, 2);
        expect_sound(schedule.with_recomputation(), *network, 2);
        if (our_policy()) expect_sound(schedule.with(Discipline::greedy), *network, 2);
      }
      for (const char* name : {"ddp", "fsdp"}) {
        SCOPED_TRACE(name);
        const Schedule replicas =
            plan::make_schedule(name, {.workers = workers(), .microbatches = 6, .graph = network->graph});
        expect_sound(replicas, *network, 2);
      }
    }
  }
}

// Shards on workers side by side, on one worker, and scattered over all workers.
TEST(Engine, Shards) {
  for (const model::Precision precision : {model::Precision::fp32, model::Precision::bf16}) {
    const int pairs = workers() / 2;
    const model::Network gpt = sharded_gpt(std::max(pairs, 1), {2}, precision);
    for (const char* name : {"1f1b", "gpipe", "fsdp"}) {
      if (workers() != 2 * pairs) continue;
      SCOPED_TRACE(name);
      const Schedule schedule = sharded_schedule(name, gpt, pairs, 6);
      const Outcome run = expect_sound(schedule, gpt, 2);
      if (our_policy()) expect_peaks(run, schedule, gpt);
      expect_sound(split(schedule), gpt, 2);
      expect_sound(schedule.with_recomputation(), gpt, 2);
    }
    expect_sound(scattered(gpt.graph, workers(), 5, true), gpt, 2);
  }
}

// The first step computes the losses and the gradient of the network that was never cut.
void expect_whole_step(const Outcome& run, const Schedule& schedule, const model::Network& network) {
  if (!is_root()) return;
  const auto whole = model::expected_gradient(network, *data_for(network), start_values(network),
                                              schedule.microbatches(), 0);
  for (std::size_t b = 0; b < whole.losses.size(); ++b)
    EXPECT_NEAR(run.losses[0][b], whole.losses[b], 1e-5 * whole.losses[b]) << "micro-batch " << b;
  std::vector<Floats> gradients;
  for (const auto& of_set : whole.gradients) gradients.emplace_back(of_set.begin(), of_set.end());
  expect_close(run.gradients, gradients, 1e-5, "gradient");
}

/// Shards T, the workers D that each worker of the schedule becomes, and shards of the vocabulary.
struct Fold {
  std::vector<int> shards;
  int workers_each;
  int vocabulary = 1;
};

// T = 2 and 4, and another one in each block; shards of the vocabulary without and with them. Where the
// workers can be divided, shards are side by side. A rank alone runs each schedule with each fold, two ranks
// run every other pair, and more ranks run the rest.
TEST(Engine, ShardsUnderNamedSchedules) {
  if (!our_policy()) GTEST_SKIP() << "Engine.Shards is of all policies; some need seconds for a schedule";
  const int two = std::gcd(2, workers());
  const int four = std::gcd(4, workers());
  const int ranks = session->mpi().ranks();
  int pair = 0;
  for (const Fold& fold : {Fold{{2}, two}, Fold{{4}, two}, Fold{{4}, four}, Fold{{4, 1, 2}, two},
                           Fold{{1}, 1, 3}, Fold{{2}, two, 3}}) {
    const auto sharded = [&](int stages) {
      return sharded_gpt(stages, fold.shards, model::Precision::fp32, fold.vocabulary);
    };
    for (const NamedCase& c : named_cases(workers() / fold.workers_each, 4, sharded)) {
      if (ranks > 1 && pair++ % 2 == (ranks == 2 ? 0 : 1)) continue;
      const Schedule schedule = sharded_schedule(c.schedule, c.network, fold.workers_each);
      SCOPED_TRACE(
          fmt::format("{}, {} shards on {} workers each", c.name, fold.shards.front(), fold.workers_each));
      const Outcome run = expect_sound(schedule, c.network, 1);
      expect_peaks(run, schedule, c.network);
      expect_whole_step(run, schedule, c.network);
    }
  }
}

// Passes read weights in bf16, the optimizer updates them in fp32. The schedules send data in every way.
TEST(Engine, Bf16) {
  constexpr auto bf16 = model::Precision::bf16;
  const model::Network gpt = tiny_gpt(workers(), bf16);
  for (const char* name : {"1f1b", "ddp", "fsdp"}) {
    for (const bool is_split : {false, true}) {
      const Schedule named = plan::make_schedule(name, {.workers = workers(), .microbatches = 6});
      const Schedule schedule = is_split ? split(named) : named;
      SCOPED_TRACE(schedule.name());
      const Outcome run = expect_sound(schedule, gpt, 3);
      if (our_policy()) expect_peaks(run, schedule, gpt);
    }
    const Schedule recomputing =
        plan::make_schedule(name, {.workers = workers(), .microbatches = 6, .homes = {plan::Home::none}});
    SCOPED_TRACE(recomputing.name() + ", recomputing");
    const Outcome run = expect_sound(recomputing, gpt, 2);
    if (our_policy()) expect_peaks(run, recomputing, gpt);
  }
  const model::Network tree = tiny_mlp(5, 2, bf16);
  for (const bool is_split : {false, true}) {
    const Schedule schedule = scattered(tree.graph, workers(), 5, is_split);
    SCOPED_TRACE(is_split ? "tree, split" : "tree, fused");
    const Outcome run = expect_sound(schedule, tree, 3);
    if (our_policy()) expect_peaks(run, schedule, tree);
  }
}

// Layers that the GPT does not have: rmsnorm, swiglu, rotary, attention with fewer heads of keys and values.
TEST(Engine, Llama) {
  for (const auto precision : {model::Precision::fp32, model::Precision::bf16}) {
    const model::Network llama = tiny_llama(workers(), precision);
    for (const char* name : {"1f1b", "zb-h1", "fsdp"}) {
      for (const bool recompute : {false, true}) {
        const Schedule schedule =
            plan::make_schedule(name, {.workers = workers(),
                                       .microbatches = 6,
                                       .homes = {recompute ? plan::Home::none : plan::Home::worker}});
        SCOPED_TRACE(schedule.name() + (recompute ? ", recomputing" : ""));
        const Outcome run = expect_sound(schedule, llama, 2);
        if (our_policy()) expect_peaks(run, schedule, llama);
      }
    }
  }
}

// Recomputation gives the same bits as without, and workers hold less.
TEST(Engine, Recomputation) {
  std::uint64_t bytes_with = 0;
  std::uint64_t bytes_without = 0;
  for (const NamedCase& c : named_cases(workers(), 6)) {
    const Schedule schedule = c.schedule.with_recomputation();
    SCOPED_TRACE(schedule.name());
    const Outcome run = expect_sound(schedule, c.network, 2);
    if (!our_policy()) continue;
    expect_peaks(run, schedule, c.network);
    expect_same_bits(run, c.schedule, c.network, sgd, *data_for(c.network));
    const plan::Timeline kept = plan::simulate(c.schedule, costs_of(c.network));
    for (std::size_t w = 0; w < run.workers.size(); ++w) {
      EXPECT_LE(run.workers[w].peak_stashes, kept.peak_stashes[w]);
      bytes_with += run.workers[w].peak_stash_bytes;
      bytes_without += kept.peak_stash_bytes[w];
    }
  }
  // Summed over all schedules: a worker with the embedding, whose stash is small, may hold more than without
  // recomputation.
  if (bytes_without > 0) {
    EXPECT_LT(bytes_with, bytes_without);
  }
}

TEST(Engine, RecomputationElsewhere) {
  const model::Network tree = tiny_mlp(5, 2);
  const model::Network dag = dag_network({5, {{0, 2}, {1, 2}, {0, 3}, {2, 3}, {2, 4}, {3, 4}}});
  for (const model::Network* network : {&tree, &dag}) {
    for (const bool is_split : {false, true}) {
      const Schedule schedule = scattered(network->graph, workers(), 5, is_split).with_recomputation();
      SCOPED_TRACE(network->config.kind + (is_split ? " split" : " fused"));
      const Outcome run = expect_sound(schedule, *network, 2);
      if (our_policy()) expect_peaks(run, schedule, *network);
      expect_sound(schedule.with(Discipline::greedy), *network, 2);
    }
  }
}

TEST(Engine, NamedSchedulesGreedy) {
  if (!our_policy()) GTEST_SKIP() << "disciplines are our policy's";
  for (const NamedCase& c : named_cases(workers(), 5)) {
    const Schedule schedule = c.schedule.with(Discipline::greedy);
    SCOPED_TRACE(schedule.name());
    expect_sound(schedule, c.network, 3);
  }
}

TEST(Engine, NamedSchedulesBounded) {
  if (!our_policy()) GTEST_SKIP() << "disciplines are our policy's";
  for (const NamedCase& c : named_cases(workers(), 4)) {
    for (const Schedule& named : {c.schedule, split(c.schedule)}) {
      SCOPED_TRACE(named.name());
      // With room for one stash, each worker runs its micro-batches sequentially: timing does not
      // matter.
      const Schedule tight = named.with(Discipline::bounded, smallest_limits(named));
      const Outcome run = expect_sound(tight, c.network, 2);
      expect_below_limits(run, tight);
      const auto limits = tight.memory_limits();
      if (std::ranges::all_of(limits, [](int limit) { return limit == 1; }))
        expect_peaks(run, tight, c.network);
    }
    std::vector<int> limits = smallest_limits(c.schedule);
    for (int& limit : limits) limit += 2;
    const Schedule roomy = c.schedule.with(Discipline::bounded, limits);
    SCOPED_TRACE("roomy " + roomy.name());
    expect_below_limits(expect_sound(roomy, c.network, 2), roomy);
  }
}

TEST(Engine, FAndBOfAMicrobatchOnDifferentWorkers) {
  const model::Network gpt = tiny_gpt(4);
  const model::Network tree = tiny_mlp(5, 2);
  const model::Network dag = dag_network({5, {{0, 2}, {1, 2}, {0, 3}, {2, 3}, {2, 4}, {3, 4}}});
  for (const model::Network* network : {&gpt, &tree, &dag}) {
    for (const bool is_split : {false, true}) {
      const Schedule schedule = scattered(network->graph, workers(), 5, is_split);
      SCOPED_TRACE(network->config.kind + (is_split ? " split" : " fused"));
      const Outcome run = expect_sound(schedule, *network, 2);
      if (!our_policy()) continue;
      expect_peaks(run, schedule, *network);
      expect_sound(schedule.with(Discipline::greedy), *network, 2);
    }
  }
}

TEST(Engine, TreeOfStages) {
  const model::Network network = tiny_mlp(5, 2);
  std::vector<int> placement;
  for (int s = 0; s < 5; ++s) placement.push_back(s % workers());
  for (const char* name : {"1f1b", "gpipe"}) {
    const Schedule fused = plan::make_schedule(
        name, {.workers = workers(), .microbatches = 6, .graph = network.graph, .stage_workers = placement});
    for (const Schedule& schedule : {fused, split(fused)}) {
      SCOPED_TRACE(schedule.name());
      const Outcome run = expect_sound(schedule, network, 3);
      if (our_policy()) expect_peaks(run, schedule, network);
    }
  }
  const Schedule replicas =
      plan::make_schedule("fsdp", {.workers = workers(), .microbatches = 6, .graph = network.graph});
  expect_sound(replicas, network, 2);
}

TEST(Engine, FewerMicrobatchesThanWorkers) {
  const model::Network network = tiny_gpt(workers());
  for (const char* name : {"ddp", "fsdp", "1f1b"}) {
    SCOPED_TRACE(name);
    expect_sound(plan::make_schedule(name, {.workers = workers(), .microbatches = 1}), network, 2);
  }
}

TEST(Engine, StagesWithoutParameters) {
  const model::Network network = dag_network(plan::StageGraph::chain(3), true);
  std::vector<int> placement;
  for (int s = 0; s < 3; ++s) placement.push_back(s % workers());
  const Noise data;
  for (const bool is_split : {false, true}) {
    const Schedule fused = plan::make_schedule(
        "1f1b",
        {.workers = workers(), .microbatches = 4, .graph = network.graph, .stage_workers = placement});
    const Schedule schedule = is_split ? split(fused) : fused;
    const Outcome run = train(schedule, network, sgd, data, 2);
    expect_trained(run, schedule, network, sgd, data);
    expect_all_jobs(run, schedule);
  }
}

// The engine keeps accumulators on a GPU by their write-through mask: StarPU evicts no datum from a node in
// the mask. Main memory is the only node here, but for data without a home it has the rules of a GPU's
// node.
TEST(Engine, DataInTheWriteThroughMaskAreNotEvicted) {
  starpu_data_handle_t registered = nullptr;
  starpu_vector_data_register(&registered, -1, 0, 1000, sizeof(float));
  const Handle handle(registered);
  ASSERT_EQ(starpu_data_acquire(registered, STARPU_W), 0);
  starpu_data_release(registered);
  EXPECT_EQ(starpu_data_can_evict(registered, STARPU_MAIN_RAM, STARPU_FETCH), 1);
  starpu_data_set_wt_mask(registered, 1U << STARPU_MAIN_RAM);
  EXPECT_EQ(starpu_data_can_evict(registered, STARPU_MAIN_RAM, STARPU_FETCH), 0);
}

// After a step StarPU holds only the workers' scratch memory: activations, stashes and fetched weights are
// freed.
TEST(Engine, NothingIsLeftInMemory) {
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  const std::size_t before = starpu_memory_get_used(STARPU_MAIN_RAM);
  for (const char* name : {"1f1b", "fsdp"}) {
    SCOPED_TRACE(name);
    for (const bool recompute : {false, true}) {
      const Schedule schedule =
          plan::make_schedule(name, {.workers = workers(),
                                     .microbatches = 4,
                                     .homes = {recompute ? plan::Home::none : plan::Home::worker}});
      std::size_t scratch = 0;
      for (int stage = 0; stage < schedule.stages(); ++stage)
        scratch += scratch_size(schedule, network, stage, session->on_gpus()) * sizeof(float);
      scratch *= index(session->map().count(session->mpi().rank()));
      Engine engine(*session, schedule, network, sgd, model::given_values(start_values(network)), patient);
      for (int step = 0; step < 20; ++step) {
        engine.run_step(step, *data);
        EXPECT_LE(starpu_memory_get_used(STARPU_MAIN_RAM), before + scratch) << "after step " << step;
      }
    }
    EXPECT_EQ(starpu_memory_get_used(STARPU_MAIN_RAM), before) << "after the engine";
  }
}

// Even when each rank has only one task in flight, and data of different micro-batches share a handle as soon
// as they can.
TEST(Engine, TheSubmissionWindowChangesNothing) {
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  for (const auto& [name, recompute] : {std::pair{"1f1b", false},
                                        {"1f1b", true},
                                        {"gpipe", false},
                                        {"zb-h1", false},
                                        {"ddp", false},
                                        {"fsdp", false}}) {
    const Schedule schedule =
        plan::make_schedule(name, {.workers = workers(),
                                   .microbatches = 4 * workers(),
                                   .homes = {recompute ? plan::Home::none : plan::Home::worker}});
    for (const int window : {1, 7}) {
      SCOPED_TRACE(::testing::Message() << name << (recompute ? ", recompute" : "") << ", window " << window);
      const Outcome run =
          train(schedule, network, sgd, *data, 2, {.timeout = patient.timeout, .window = window});
      expect_all_jobs(run, schedule);
      expect_transfers(run, schedule, network);
      if (!our_policy()) continue;
      expect_same_bits(run, schedule, network, sgd, *data);
      expect_order(run, schedule);
      expect_peaks(run, schedule, network);
    }
  }
}

TEST(Engine, TheAskedPolicyRuns) {
  EXPECT_EQ(session->policy(), starpu_sched_get_sched_policy()->policy_name);
  EXPECT_EQ(our_policy(), session->policy() == "starpipe");
}

}  // namespace
}  // namespace starpipe::runtime
