// SPDX-License-Identifier: Apache-2.0
// The engine on StarPU and StarPU-MPI, on any number of ranks. Under any schedule it trains as the reference
// does; under an ordered schedule it gives the same bits as the tasks one after the other; its measurements
// equal the predictions of `plan`. Every test is collective: no rank may return early from a test.
//
// --workers=N (4): logical workers. --device=cpu|cuda|mixed: their devices. --policy=NAME: the scheduling
// policy. --slots=linear|reversed: the workers' slots. --stall=yes|gathering: no tests; rank 1 stops
// answering, for fault_test.py.
#include "runtime/engine/engine.hpp"

#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>

#include <cblas.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/hardware/cuda_devices.hpp"
#include "runtime/mapping/core_share.hpp"
#include "runtime/mapping/gpu_share.hpp"
#include "runtime/mpi_main.hpp"
#include "runtime/networks.hpp"
#include "runtime/ranks/agreement.hpp"
#include "runtime/ranks/clock.hpp"
#include "runtime/report/measurement.hpp"
#include "runtime/report/rank_bytes.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/model/reference.hpp"
#include "starpipe/model/verification.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"

namespace starpipe::runtime {
namespace {

using namespace testing;
using plan::Discipline;
using plan::Schedule;

const Session* session = nullptr;
int workers() { return session->map().workers(); }
bool is_root() { return session->mpi().rank() == 0; }
bool our_policy() { return session->core() != nullptr; }

const model::OptimizerConfig sgd = {
    .kind = "sgd", .learning_rate = 0.1, .weight_decay = 0.01, .momentum = 0.9};
const RuntimeConfig patient = {.timeout = 1000};

/// The results of a run; on rank 0 only, except losses, norms, rates and bytes.
struct Outcome {
  std::vector<Floats> losses;  // by step and micro-batch
  std::vector<double> norms;   // by step
  std::vector<double> rates;   // by step
  std::vector<int> clipped;    // steps
  std::vector<Floats> gradients;
  std::vector<Floats> parameters;
  std::vector<WorkerRecord> workers;
  std::vector<JobRecord> jobs;
  std::uint64_t bytes_sent = 0;       // by all ranks
  std::uint64_t bytes_predicted = 0;  // likewise
};

Outcome train(const Schedule& schedule, const model::Network& network,
              const model::OptimizerConfig& optimizer, const model::Dataset& data, int steps,
              const RuntimeConfig& config = patient) {
  Outcome run;
  // It sleeps while another rank checks its last run. The engine's collective calls would spin.
  session->mpi().barrier();
  Engine engine(*session, schedule, network, optimizer, start_values(network), config);
  const std::uint64_t before = engine.bytes_sent_by_starpu();
  for (int step = 0; step < steps; ++step) {
    StepResult result = engine.run_step(step, data);
    run.losses.push_back(std::move(result.losses));
    run.norms.push_back(result.gradient_norm.value());
    run.rates.push_back(result.learning_rate);
    if (result.clipped) run.clipped.push_back(step);
    run.jobs = std::move(result.jobs);
    run.workers = std::move(result.workers);
  }
  const std::uint64_t sent = engine.bytes_sent_by_starpu() - before;
  MPI_Allreduce(&sent, &run.bytes_sent, 1, MPI_UINT64_T, MPI_SUM, session->mpi().comm());
  run.bytes_predicted =
      bytes_between_ranks(engine.graph(), session->map()) * static_cast<std::uint64_t>(steps);
  run.gradients = engine.gradients();
  run.parameters = engine.parameters();
  return run;
}

/// Another order of additions changes the last bits of a gradient. In bf16 a weight may then be rounded the
/// other way, a change of 2^-8 of the weight at most.
double tolerance_of(const model::Network& network) {
  return network.config.precision == model::Precision::bf16 ? 1.0 / 256 : 1e-5;
}

void expect_trained(const Outcome& run, const Schedule& schedule, const model::Network& network,
                    const model::OptimizerConfig& optimizer, const model::Dataset& data) {
  const double tolerance = tolerance_of(network);
  const auto steps = static_cast<int>(run.losses.size());
  const auto reference =
      model::train_reference(network, data, optimizer, start_values(network), schedule.microbatches(), steps);
  for (std::size_t step = 0; step < run.losses.size(); ++step) {
    ASSERT_EQ(run.losses[step].size(), index(schedule.microbatches()));
    double mean = 0;
    for (const float loss : run.losses[step]) mean += static_cast<double>(loss) / schedule.microbatches();
    EXPECT_NEAR(mean, reference.losses[step], (step == 0 ? 1e-5 : tolerance) * reference.losses[step])
        << "step " << step;
    EXPECT_NEAR(run.norms[step], reference.norms[step], 10 * tolerance * reference.norms[step]);
  }
  if (!is_root()) return;
  expect_close(run.gradients, reference.gradients, tolerance, "gradient");
  expect_close(run.parameters, reference.parameters, tolerance, "parameters");
}

// The ordered discipline fixes the order of every sum. So the engine gives the same bits as the tasks one
// after the other, on 1, 2 and 4 ranks.
void expect_same_bits(const Outcome& run, const Schedule& schedule, const model::Network& network,
                      const model::OptimizerConfig& optimizer, const model::Dataset& data) {
  SequentialRun sequential(schedule, network, optimizer, start_values(network));
  for (std::size_t step = 0; step < run.losses.size(); ++step) {
    EXPECT_EQ(run.losses[step], sequential.step(static_cast<int>(step), data)) << "step " << step;
    EXPECT_EQ(run.norms[step], sequential.gradient_norm()) << "step " << step;
  }
  if (!is_root()) return;
  EXPECT_TRUE(run.gradients == sequential.gradients());
  EXPECT_TRUE(run.parameters == sequential.parameters());
}

void expect_all_jobs(const Outcome& run, const Schedule& schedule) {
  if (!is_root()) return;
  std::vector<int> times(schedule.id_count(), 0);
  for (const JobRecord& job : run.jobs) {
    ASSERT_LT(job.job, schedule.id_count());
    ++times[job.job];
    EXPECT_LE(job.submitted, job.ready);
    EXPECT_LE(job.ready, job.start);
    EXPECT_LE(job.start, job.end);
    if (our_policy()) {
      EXPECT_EQ(job.worker, schedule.compute(job.job)) << to_string(schedule.job(job.job));
    } else {
      EXPECT_EQ(session->map().rank_of(job.worker), session->map().rank_of(schedule.compute(job.job)));
    }
  }
  for (plan::JobId id = 0; id < schedule.id_count(); ++id) EXPECT_EQ(times[id], schedule.exists(id) ? 1 : 0);
}

// A job is ready only after the jobs that it waits for. Clocks of ranks on other hosts differ a little.
void expect_ready_after_producers(const Outcome& run, const Schedule& schedule) {
  const std::vector<std::string> clocks = session->mpi().gather(clock_name());
  if (!is_root()) return;
  const auto clock_of = [&](const JobRecord& job) {
    return clocks[index(session->map().rank_of(job.worker))];
  };
  std::vector<const JobRecord*> by_job(schedule.id_count(), nullptr);
  for (const JobRecord& job : run.jobs) by_job[job.job] = &job;
  for (const JobRecord& job : run.jobs) {
    schedule.for_each_pred(job.job, [&](plan::JobId id) {
      const JobRecord& producer = *by_job[id];
      EXPECT_TRUE(clock_of(producer) != clock_of(job) || producer.end <= job.ready)
          << producer.end << " " << job.ready;
    });
  }
}

void expect_transfers(const Outcome& run, const Schedule& schedule, const model::Network& network) {
  EXPECT_EQ(run.bytes_sent, run.bytes_predicted) << "by StarPU-MPI's statistics";
  if (!is_root() || !our_policy()) return;
  const auto planned = plan::count_transfers(schedule, costs_of(network));
  ASSERT_EQ(run.workers.size(), planned.size());
  for (std::size_t w = 0; w < planned.size(); ++w)
    EXPECT_EQ(run.workers[w].received, planned[w]) << "worker " << w;
}

void expect_order(const Outcome& run, const Schedule& schedule) {
  if (!is_root()) return;
  for (int w = 0; w < schedule.workers(); ++w) {
    std::vector<std::pair<double, plan::JobId>> ran;
    for (const JobRecord& job : run.jobs) {
      if (job.worker == w) ran.emplace_back(job.start, job.job);
    }
    std::ranges::sort(ran);
    const auto order = schedule.order(w);
    ASSERT_EQ(ran.size(), order.size());
    for (std::size_t i = 0; i < ran.size(); ++i)
      EXPECT_EQ(ran[i].second, order[i]) << "job " << i << " of worker " << w;
  }
}

void expect_peaks(const Outcome& run, const Schedule& schedule, const model::Network& network) {
  if (!is_root()) return;
  const plan::Timeline predicted = plan::simulate(schedule, costs_of(network));
  for (std::size_t w = 0; w < run.workers.size(); ++w) {
    EXPECT_EQ(run.workers[w].peak_stashes, predicted.peak_stashes[w]) << "worker " << w;
    EXPECT_EQ(run.workers[w].peak_stash_bytes, predicted.peak_stash_bytes[w]) << "worker " << w;
  }
}

void expect_below_limits(const Outcome& run, const Schedule& schedule) {
  if (!is_root()) return;
  for (std::size_t w = 0; w < run.workers.size(); ++w) {
    EXPECT_LE(run.workers[w].peak_stashes, schedule.memory_limits()[w]) << "worker " << w;
  }
}

/// Runs the schedule and checks everything that must hold for any schedule.
Outcome expect_sound(const Schedule& schedule, const model::Network& network, int steps) {
  EXPECT_EQ(plan::check(schedule).problem, "");
  std::unique_ptr<model::Dataset> data = std::make_unique<Noise>();
  if (network.config.kind != "dag") data = data_for(network);
  Outcome run = train(schedule, network, sgd, *data, steps);
  expect_trained(run, schedule, network, sgd, *data);
  expect_all_jobs(run, schedule);
  expect_ready_after_producers(run, schedule);
  expect_transfers(run, schedule, network);
  if (our_policy() && schedule.discipline() == Discipline::ordered) {
    expect_same_bits(run, schedule, network, sgd, *data);
    expect_order(run, schedule);
  }
  return run;
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
// workers can be divided, shards are side by side.
TEST(Engine, ShardsUnderNamedSchedules) {
  if (!our_policy()) GTEST_SKIP() << "Engine.Shards is of all policies; some need seconds for a schedule";
  const int two = std::gcd(2, workers());
  const int four = std::gcd(4, workers());
  for (const Fold& fold : {Fold{{2}, two}, Fold{{4}, two}, Fold{{4}, four}, Fold{{4, 1, 2}, two},
                           Fold{{1}, 1, 3}, Fold{{2}, two, 3}}) {
    const auto sharded = [&](int stages) {
      return sharded_gpt(stages, fold.shards, model::Precision::fp32, fold.vocabulary);
    };
    for (const NamedCase& c : named_cases(workers() / fold.workers_each, 4, sharded)) {
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
        plan::make_schedule(name, {.workers = workers(), .microbatches = 6, .recompute = true});
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
            plan::make_schedule(name, {.workers = workers(), .microbatches = 6, .recompute = recompute});
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
      // With room for one stash, each worker runs its micro-batches one after the other: timing does not
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

TEST(Engine, ReplicasAreTheSingleCopy) {
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  const Outcome replicas =
      train(plan::make_schedule("ddp", {.workers = workers(), .microbatches = 6}), network, sgd, *data, 3);
  const Outcome single =
      train(plan::make_schedule("1f1b", {.workers = workers(), .microbatches = 6}), network, sgd, *data, 3);
  for (std::size_t step = 0; step < 3; ++step) {
    for (std::size_t b = 0; b < 6; ++b) {
      EXPECT_NEAR(replicas.losses[step][b], single.losses[step][b], 1e-5F * single.losses[step][b]);
    }
  }
  expect_close(replicas.gradients, single.gradients, 1e-5, "gradient");
  expect_close(replicas.parameters, single.parameters, 1e-5, "parameters");
}

/// A recipe of GPT-2's kind. The clip binds in every step of the tests below.
const model::OptimizerConfig recipe = {.kind = "adamw",
                                       .learning_rate = 1e-2,
                                       .weight_decay = 0.1,
                                       .decay = "matrices",
                                       .schedule = {"cosine", 2, 1e-3, 6},
                                       .clip = 0.25};

std::vector<float> joined(const std::vector<Floats>& parts) {
  Floats all;
  for (const Floats& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// The network with as many stages as the schedule has on all workers. All of them differ in their cuts only.
model::Network network_for(const char* schedule, model::Precision precision = model::Precision::fp32) {
  return tiny_gpt(plan::find_schedule(schedule).stages_per_worker * workers(), precision, 2 * workers());
}

// One micro-batch leaves no choice in the order of a sum. So whatever the schedule, the cuts, the holders and
// the ranks, gradient, norm and weights have the bits of the reference.
TEST(Engine, ClippedUpdatesDoNotDependOnTheSchedule) {
  constexpr int steps = 2;
  const model::Network whole = tiny_gpt(1, model::Precision::fp32, 2 * workers());
  const auto data = data_for(whole);
  const auto reference = model::train_reference(whole, *data, recipe, start_values(whole), 1, steps);
  for (const char* name : {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "v-half", "ddp", "fsdp"}) {
    SCOPED_TRACE(name);
    const model::Network network = network_for(name);
    const Schedule schedule =
        plan::make_schedule(name, {.workers = workers(), .microbatches = 1, .graph = network.graph});
    const Outcome run = train(schedule, network, recipe, *data, steps);
    EXPECT_EQ(run.norms, reference.norms);
    EXPECT_EQ(run.clipped, (std::vector{0, 1}));
    for (int step = 0; step < steps; ++step)
      EXPECT_EQ(run.rates[index(step)], model::learning_rate(recipe.schedule, recipe.learning_rate, step));
    expect_transfers(run, schedule, network);
    if (!is_root()) continue;
    EXPECT_EQ(joined(run.gradients), joined(reference.gradients));
    EXPECT_EQ(joined(run.parameters), joined(reference.parameters));
  }
}

// These add up the micro-batches in their order, as the reference does.
TEST(Engine, ClippedUpdatesOfManyMicrobatches) {
  if (!our_policy()) GTEST_SKIP() << "other policies have no fixed order";
  constexpr int steps = 3;
  for (const auto precision : {model::Precision::fp32, model::Precision::bf16}) {
    const model::Network whole = tiny_gpt(1, precision, 2 * workers());
    const auto data = data_for(whole);
    const auto reference = model::train_reference(whole, *data, recipe, start_values(whole), 8, steps);
    for (const char* name : {"1f1b", "zb-h1", "interleaved-1f1b"}) {
      SCOPED_TRACE(::testing::Message() << name << ", " << to_string(precision));
      const model::Network network = network_for(name, precision);
      const Schedule schedule =
          plan::make_schedule(name, {.workers = workers(), .microbatches = 8, .graph = network.graph});
      const Outcome run = train(schedule, network, recipe, *data, steps);
      EXPECT_EQ(run.norms, reference.norms);
      expect_transfers(run, schedule, network);
      if (is_root()) {
        EXPECT_EQ(joined(run.parameters), joined(reference.parameters));
      }
    }
  }
}

TEST(Engine, AClipThatDoesNotBindChangesNothing) {
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  model::OptimizerConfig loose = sgd;
  loose.clip = 1e6;
  for (const char* name : {"1f1b", "zb-h1", "ddp", "fsdp"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = plan::make_schedule(name, {.workers = workers(), .microbatches = 4});
    const Outcome with = train(schedule, network, loose, *data, 2);
    EXPECT_TRUE(with.clipped.empty());
    expect_transfers(with, schedule, network);
    if (!our_policy()) continue;
    const Outcome without = train(schedule, network, sgd, *data, 2);
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.norms, without.norms);
    EXPECT_TRUE(with.parameters == without.parameters);
  }
}

// A large epsilon: else AdamW would make a full step from the rounding error of a gradient that is zero.
TEST(Engine, AdamW) {
  const model::OptimizerConfig adamw = {
      .kind = "adamw", .learning_rate = 1e-2, .weight_decay = 0.1, .epsilon = 1e-2};
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  for (const char* name : {"1f1b", "ddp"}) {
    SCOPED_TRACE(name);
    const Schedule schedule = plan::make_schedule(name, {.workers = workers(), .microbatches = 4});
    const Outcome once = train(schedule, network, adamw, *data, 1);
    expect_trained(once, schedule, network, adamw, *data);
    if (!our_policy()) continue;
    const Outcome run = train(schedule, network, adamw, *data, 2);
    expect_same_bits(run, schedule, network, adamw, *data);
  }
}

TEST(Engine, TwoRunsAreEqualBitByBit) {
  if (!our_policy()) GTEST_SKIP() << "other policies have no fixed order";
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  const Schedule schedule = split(plan::make_schedule("ddp", {.workers = workers(), .microbatches = 7}));
  const Outcome first = train(schedule, network, sgd, *data, 3);
  const Outcome second = train(schedule, network, sgd, *data, 3);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_TRUE(first.gradients == second.gradients);
  EXPECT_TRUE(first.parameters == second.parameters);
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
// the mask. Main memory is the only node here, but for data without a home its rules are those of a GPU's
// node.
TEST(Engine, DataInTheWriteThroughMaskAreNotEvicted) {
  starpu_data_handle_t registered = nullptr;
  starpu_vector_data_register(&registered, -1, 0, 1000, sizeof(float));
  const Handle handle(registered, false);
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
          plan::make_schedule(name, {.workers = workers(), .microbatches = 4, .recompute = recompute});
      std::size_t scratch = 0;
      for (const model::Stage& stage : network.stages)
        scratch += scratch_size(schedule, stage, session->on_gpus()) * sizeof(float);
      scratch *= index(session->map().count(session->mpi().rank()));
      Engine engine(*session, schedule, network, sgd, start_values(network), patient);
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
    const Schedule schedule = plan::make_schedule(
        name, {.workers = workers(), .microbatches = 4 * workers(), .recompute = recompute});
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

/// Other data, with some values replaced.
class Spoilt : public model::Dataset {
 public:
  struct Value {
    int step;
    int microbatch;
    float input;   ///< of every feature; NaN: as in the other data
    float target;  ///< likewise
  };
  Spoilt(const model::Dataset& data, std::vector<Value> values) : data_(data), values_(std::move(values)) {}

  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    data_.input(step, microbatch, branch, out);
    replace(step, microbatch, &Value::input, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    data_.target(step, microbatch, out);
    replace(step, microbatch, &Value::target, out);
  }
  [[nodiscard]] std::vector<std::uint64_t> offsets(int step, int microbatch) const override {
    return data_.offsets(step, microbatch);
  }
  [[nodiscard]] std::string sample_word() const override { return data_.sample_word(); }
  [[nodiscard]] std::size_t samples_per_microbatch() const override { return data_.samples_per_microbatch(); }

 private:
  void replace(int step, int microbatch, float Value::*what, std::span<float> out) const {
    for (const Value& value : values_) {
      if (value.step == step && value.microbatch == microbatch && !std::isnan(value.*what))
        std::ranges::fill(out, value.*what);
    }
  }

  const model::Dataset& data_;
  std::vector<Value> values_;
};

constexpr float as_it_is = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// The message with which the first of two steps ends; "" when both go well.
std::string failure(const Schedule& schedule, const model::Network& network,
                    const std::vector<Floats>& parameters, const model::Dataset& data,
                    NonFinitePolicy policy = NonFinitePolicy::stop) {
  Engine engine(*session, schedule, network, sgd, parameters, patient, nullptr, policy);
  try {
    for (int step = 0; step < 2; ++step) engine.run_step(step, data);
  } catch (const RunFailure& ended) {
    return ended.what();
  }
  return "";
}

/// Parameters of linear layers, all weights and all biases of a stage being equal.
std::vector<Floats> uniform(const model::Network& network, std::vector<std::pair<float, float>> of_stage) {
  std::vector<Floats> all;
  for (std::size_t s = 0; s < network.stages.size(); ++s) {
    Floats& values = all.emplace_back();
    for (const model::Parameter& parameter : network.stages[s].parameters()) {
      const bool weight = parameter.name.ends_with("weight");
      values.insert(values.end(), parameter.size(), weight ? of_stage[s].first : of_stage[s].second);
    }
  }
  return all;
}

// The pass is the one that makes the first such value, not one that reads it, whichever ranks run them.
TEST(Engine, AValueThatIsNotFiniteEndsTheRunWithItsOrigin) {
  const model::Network chain = dag_network({3, {{0, 1}, {1, 2}}});
  const model::Network single = dag_network({1, {}});
  const Noise noise;
  for (const bool is_split : {false, true}) {
    SCOPED_TRACE(is_split ? "split" : "fused");
    const Schedule schedule = scattered(chain.graph, workers(), 4, is_split);
    const std::string passes = is_split ? "B" : "BW";
    EXPECT_EQ(failure(schedule, chain, start_values(chain), noise), "");
    // In the weights of a stage.
    auto spoilt = start_values(chain);
    spoilt[1].back() = as_it_is;
    EXPECT_EQ(failure(schedule, chain, spoilt, noise),
              "step 1, micro-batch 0, stage 1, pass F: the first result with infinity or NaN "
              "(training.nonfinite: stop)");
    EXPECT_EQ(failure(schedule, chain, spoilt, noise, NonFinitePolicy::proceed), "");
    // In the data of a micro-batch of the second step.
    EXPECT_THAT(failure(schedule, chain, start_values(chain), Spoilt(noise, {{1, 2, infinity, as_it_is}})),
                ::testing::StartsWith("step 2, micro-batch 2, stage 0, pass F:"));
    // The loss overflows.
    EXPECT_THAT(failure(schedule, chain, start_values(chain), Spoilt(noise, {{1, 3, as_it_is, 1e30F}})),
                ::testing::StartsWith("step 2, micro-batch 3, stage 2, pass F:"));
    // A finite loss, but the product of its gradient and the last weights overflows.
    EXPECT_THAT(failure(schedule, chain, uniform(chain, {{0.F, 0.F}, {0.F, 1e-22F}, {1e22F, 0.F}}),
                        Spoilt(noise, {{0, 1, as_it_is, 1e18F}})),
                ::testing::StartsWith("step 1, micro-batch 1, stage 2, pass " + passes + ":"));
    // The product of the loss's gradient and the input overflows.
    EXPECT_THAT(failure(scattered(single.graph, workers(), 4, is_split), single,
                        uniform(single, {{1e-25F, 0.F}}), Spoilt(noise, {{0, 1, 1e25F, 1e18F}})),
                ::testing::StartsWith("step 1, micro-batch 1, stage 0, pass " +
                                      std::string(is_split ? "W" : "BW") + ":"));
  }
}

/// Other data, of which a micro-batch cannot be read.
class Unreadable : public Spoilt {
 public:
  Unreadable(const model::Dataset& data, int step, int microbatch, bool input)
      : Spoilt(data, {}), step_(step), microbatch_(microbatch), input_(input) {}

  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    if (input_) refuse(step, microbatch);
    Spoilt::input(step, microbatch, branch, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    if (!input_) refuse(step, microbatch);
    Spoilt::target(step, microbatch, out);
  }

 private:
  void refuse(int step, int microbatch) const {
    if (step == step_ && microbatch >= microbatch_) {
      throw InputError("a file: micro-batch " + std::to_string(microbatch));
    }
  }
  int step_;
  int microbatch_;
  bool input_;
};

// All ranks end together, with the first micro-batch that some rank could not read.
TEST(Engine, DataThatCannotBeReadEndTheRun) {
  const model::Network network = tiny_mlp(workers());
  const auto data = data_for(network);
  for (const char* name : {"1f1b", "ddp"}) {
    const Schedule schedule = plan::make_schedule(name, {.workers = workers(), .microbatches = 6});
    for (const bool input : {true, false}) {
      EXPECT_EQ(failure(schedule, network, start_values(network), Unreadable(*data, 1, 3, input)),
                "step 2: a file: micro-batch 3")
          << name;
    }
    EXPECT_EQ(failure(schedule, network, start_values(network), Unreadable(*data, 2, 0, true)), "") << name;
  }
}

/// The steps of other data, without some.
class Without : public model::Dataset {
 public:
  Without(const model::Dataset& data, std::vector<int> steps) : data_(data), steps_(std::move(steps)) {}
  void input(int step, int microbatch, int branch, std::span<float> out) const override {
    data_.input(steps_[index(step)], microbatch, branch, out);
  }
  void target(int step, int microbatch, std::span<float> out) const override {
    data_.target(steps_[index(step)], microbatch, out);
  }
  [[nodiscard]] std::vector<std::uint64_t> offsets(int step, int microbatch) const override {
    return data_.offsets(steps_[index(step)], microbatch);
  }
  [[nodiscard]] std::string sample_word() const override { return data_.sample_word(); }
  [[nodiscard]] std::size_t samples_per_microbatch() const override { return data_.samples_per_microbatch(); }

 private:
  const model::Dataset& data_;
  std::vector<int> steps_;  // those that are left
};

// Training goes on as if the skipped steps had not been, on every worker that holds weights. AdamW's
// correction of its moments depends on the number of updates.
TEST(Engine, SkippedStepsLeaveNoTrace) {
  const model::OptimizerConfig adamw;
  for (const auto precision : {model::Precision::fp32, model::Precision::bf16}) {
    const model::Network network = tiny_mlp(workers(), 1, precision);
    const auto data = data_for(network);
    const Spoilt spoilt(*data, {{1, 2, as_it_is, infinity}, {3, 0, infinity, as_it_is}});
    for (const char* name : {"1f1b", "zb-h1", "ddp", "fsdp"}) {
      const Schedule schedule = plan::make_schedule(name, {.workers = workers(), .microbatches = 4});
      SCOPED_TRACE(::testing::Message() << name << ", " << to_string(precision));
      Engine engine(*session, schedule, network, adamw, start_values(network), patient, nullptr,
                    NonFinitePolicy::skip);
      const std::uint64_t before = engine.bytes_sent_by_starpu();
      std::vector<std::string> skipped_for;
      for (int step = 0; step < 6; ++step) {
        const StepResult result = engine.run_step(step, spoilt);
        skipped_for.push_back(
            result.skipped_for ? plan::to_string(schedule.job(result.skipped_for->pass.value())) : "");
      }
      EXPECT_EQ(skipped_for[1], plan::to_string(plan::Job{schedule.stages() - 1, 2, plan::Pass::F}));
      EXPECT_EQ(skipped_for[3], plan::to_string(plan::Job{0, 0, plan::Pass::F}));
      EXPECT_EQ(std::ranges::count(skipped_for, ""), 4);
      const std::uint64_t sent = engine.bytes_sent_by_starpu() - before;
      std::uint64_t all_sent = 0;
      MPI_Allreduce(&sent, &all_sent, 1, MPI_UINT64_T, MPI_SUM, session->mpi().comm());
      EXPECT_EQ(all_sent, 6 * bytes_between_ranks(engine.graph(), session->map()));
      const auto trained = engine.parameters();
      SequentialRun sequential(schedule, network, adamw, start_values(network));
      const Without good(*data, {0, 2, 4, 5});
      for (int step = 0; step < 4; ++step) sequential.step(step, good);
      if (!is_root()) continue;
      if (our_policy()) {
        EXPECT_TRUE(trained == sequential.parameters());
      } else {
        expect_close(trained, sequential.parameters(), tolerance_of(network), "parameters");
      }
    }
  }
}

// Each worker's sum of gradients is finite in fp32, but not the sum of both.
TEST(Engine, ASumOfGradientsThatOverflowsIsFoundByItsNorm) {
  if (workers() == 1) GTEST_SKIP() << "one worker has one sum";
  const model::Network network = dag_network({1, {}});
  const Noise noise;
  // y = 0. The gradient of a weight is 2.5e38 for each micro-batch: input times target, times 3 rows, 2 / 12
  // of the mean square, and 1 / 2 of the mean over micro-batches.
  const Spoilt spoilt(noise, {{1, 0, 1e21F, -1e18F}, {1, 1, 1e21F, -1e18F}});
  const Schedule schedule =
      plan::make_schedule("ddp", {.workers = workers(), .microbatches = 2, .graph = network.graph});
  const auto zeros = uniform(network, {{0.F, 0.F}});
  const model::OptimizerConfig still = {.kind = "sgd", .learning_rate = 0};
  for (const NonFinitePolicy policy : {NonFinitePolicy::stop, NonFinitePolicy::skip}) {
    Engine engine(*session, schedule, network, still, zeros, patient, nullptr, policy);
    EXPECT_FALSE(engine.run_step(0, spoilt).skipped_for);
    std::string message;
    try {
      const StepResult result = engine.run_step(1, spoilt);
      for (const float loss : result.losses) EXPECT_TRUE(std::isfinite(loss));
      ASSERT_TRUE(result.skipped_for);
      EXPECT_FALSE(result.skipped_for->pass);
      EXPECT_EQ(result.skipped_for->parameter, "s0.weight");
      EXPECT_FALSE(engine.run_step(2, spoilt).skipped_for);
    } catch (const RunFailure& ended) {
      message = ended.what();
    }
    EXPECT_EQ(message, policy == NonFinitePolicy::skip
                           ? ""
                           : "step 2: the gradient of s0.weight, added up over the workers, has infinity or "
                             "NaN (training.nonfinite: stop)");
  }
}

TEST(Engine, TheAskedPolicyRuns) {
  EXPECT_EQ(session->policy(), starpu_sched_get_sched_policy()->policy_name);
  EXPECT_EQ(our_policy(), session->policy() == "starpipe");
}

/// Rank 0 waits for rank 1, which never comes: to the second step, or to the gathering of the weights. The
/// watchdog must end both. Returns only if the watchdog fails.
int stall(bool in_gathering) {
  const model::Network network = tiny_gpt(workers());
  const auto data = data_for(network);
  const Schedule schedule = plan::make_schedule("1f1b", {.workers = workers(), .microbatches = 2});
  Engine engine(*session, schedule, network, sgd, start_values(network), {.timeout = 2});
  engine.run_step(0, *data);
  if (in_gathering) {
    if (session->mpi().rank() == 1) std::raise(SIGSTOP);
    return engine.parameters().empty() ? 1 : 0;
  }
  if (session->mpi().rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(2));
  engine.run_step(1, *data);
  return 0;
}

int run(int argc, char** argv) {
  openblas_set_num_threads(1);
  const Mpi mpi;
  report_on_rank_0(mpi);
  RuntimeConfig config;
  config.policy = option(argc, argv, "--policy", "starpipe");
  // "mixed": cores and GPUs in turn.
  const std::string device = option(argc, argv, "--device", "cpu");
  const int count = std::stoi(option(argc, argv, "--workers", "4"));
  config.device = {device};
  if (device == "mixed") {
    config.device.clear();
    for (int worker = 0; worker < count; ++worker)
      config.device.emplace_back(worker % 2 == 0 ? "cuda" : "cpu");
  }
  if (config.uses_gpus() && cuda_devices().empty()) {
    if (mpi.rank() == 0) std::puts("skipped: no CUDA device");
    return 77;
  }
  WorkerMap map(count, mpi.ranks());
  if (option(argc, argv, "--slots", "linear") == "reversed") {
    std::vector<int> slots;
    for (int worker = 0; worker < map.workers(); ++worker) slots.push_back(map.workers() - 1 - worker);
    map = WorkerMap(mpi.ranks(), std::move(slots));
  }
  const Session started(mpi, map, share_cores(mpi, map, config), configured_policy(config),
                        share_gpus(mpi, map, config));
  session = &started;
  const std::string stalls = option(argc, argv, "--stall", "no");
  if (stalls != "no") return stall(stalls == "gathering");
  return run_all_tests(mpi);
}

}  // namespace
}  // namespace starpipe::runtime

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return starpipe::runtime::run(argc, argv);
}
