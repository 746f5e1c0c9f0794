// SPDX-License-Identifier: Apache-2.0
// What the engine's tests share: a run of some steps, and what must be true of it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/reference.hpp"
#include "runtime/engine/engine.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/report/report.hpp"
#include "runtime/sequential_run.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "starpipe/plan/simulate/simulate.hpp"
#include "starpipe/plan/simulate/transfers.hpp"
#include "support/datasets.hpp"
#include "support/floats.hpp"
#include "support/networks.hpp"
#include "support/optimizers.hpp"

namespace starpipe::runtime::testing {

using plan::Discipline;
using plan::Schedule;

/// That of the test program, from its main() on.
inline const Session* session = nullptr;
inline int workers() { return session->map().workers(); }
inline bool is_root() { return session->mpi().rank() == 0; }
inline bool our_policy() { return session->core() != nullptr; }

inline const RuntimeConfig patient = {.timeout = 1000};

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

inline Outcome train(const Schedule& schedule, const model::Network& network,
                     const model::OptimizerConfig& optimizer, const model::Dataset& data, int steps,
                     const RuntimeConfig& config = patient) {
  Outcome run;
  // It sleeps while another rank checks its last run. The engine's collective calls would spin.
  session->mpi().barrier();
  Engine engine(*session, schedule, network, optimizer, model::given_values(start_values(network)), config);
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
inline double tolerance_of(const model::Network& network) {
  return network.config.precision == model::Precision::bf16 ? 1.0 / 256 : 1e-5;
}

inline void expect_trained(const Outcome& run, const Schedule& schedule, const model::Network& network,
                           const model::OptimizerConfig& optimizer, const model::Dataset& data) {
  const double tolerance = tolerance_of(network);
  const auto steps = static_cast<int>(run.losses.size());
  const auto reference = model::train_reference(network, data, optimizer, start_values(network),
                                                schedule.whole_microbatches(), steps);
  for (std::size_t step = 0; step < run.losses.size(); ++step) {
    ASSERT_EQ(run.losses[step].size(), index(schedule.whole_microbatches()));
    double mean = 0;
    for (const float loss : run.losses[step])
      mean += static_cast<double>(loss) / schedule.whole_microbatches();
    EXPECT_NEAR(mean, reference.losses[step], (step == 0 ? 1e-5 : tolerance) * reference.losses[step])
        << "step " << step;
    EXPECT_NEAR(run.norms[step], reference.norms[step], 10 * tolerance * reference.norms[step]);
  }
  if (!is_root()) return;
  expect_close(run.gradients, reference.gradients, tolerance, "gradient");
  expect_close(run.parameters, reference.parameters, tolerance, "parameters");
}

// The ordered discipline fixes the order of every sum. So the engine gives the same bits as a sequential run
// of the tasks, on 1, 2 and 4 ranks.
inline void expect_same_bits(const Outcome& run, const Schedule& schedule, const model::Network& network,
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

inline void expect_all_jobs(const Outcome& run, const Schedule& schedule) {
  if (!is_root()) return;
  std::vector<int> times(schedule.id_count(), 0);
  for (const JobRecord& job : run.jobs) {
    ASSERT_LT(job.job, schedule.id_count());
    ++times[job.job];
    EXPECT_LE(job.submitted, job.ready);
    EXPECT_LE(job.ready, job.start);
    EXPECT_LE(job.start, job.end);
    if (our_policy()) {
      const bool copies = plan::is_copy(schedule.job(job.job).pass);
      EXPECT_EQ(job.worker, copies ? schedule.ends(job.job).second : schedule.compute(job.job))
          << to_string(schedule.job(job.job));
    } else {
      EXPECT_EQ(session->map().rank_of(job.worker), session->map().rank_of(schedule.compute(job.job)));
    }
  }
  for (plan::JobId id = 0; id < schedule.id_count(); ++id) EXPECT_EQ(times[id], schedule.exists(id) ? 1 : 0);
}

// A job is ready only after the jobs that it waits for. Clocks of ranks on other hosts differ a little.
inline void expect_ready_after_producers(const Outcome& run, const Schedule& schedule) {
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

inline void expect_transfers(const Outcome& run, const Schedule& schedule, const model::Network& network) {
  EXPECT_EQ(run.bytes_sent, run.bytes_predicted) << "by StarPU-MPI's statistics";
  if (!is_root() || !our_policy()) return;
  const auto planned = plan::count_transfers(schedule, costs_of(network));
  ASSERT_EQ(run.workers.size(), planned.size());
  for (std::size_t w = 0; w < planned.size(); ++w)
    EXPECT_EQ(run.workers[w].received, planned[w]) << "worker " << w;
}

inline void expect_order(const Outcome& run, const Schedule& schedule) {
  if (!is_root()) return;
  for (int w = 0; w < schedule.workers(); ++w) {
    std::vector<std::pair<double, plan::JobId>> ran;
    for (const JobRecord& job : run.jobs) {
      if (job.worker == w && !plan::is_copy(schedule.job(job.job).pass)) ran.emplace_back(job.start, job.job);
    }
    std::ranges::sort(ran);
    const auto order = schedule.order(w);
    ASSERT_EQ(ran.size(), order.size());
    for (std::size_t i = 0; i < ran.size(); ++i)
      EXPECT_EQ(ran[i].second, order[i]) << "job " << i << " of worker " << w;
  }
}

inline void expect_peaks(const Outcome& run, const Schedule& schedule, const model::Network& network) {
  if (!is_root()) return;
  const plan::Timeline predicted = plan::simulate(schedule, costs_of(network));
  for (std::size_t w = 0; w < run.workers.size(); ++w) {
    EXPECT_EQ(run.workers[w].peak_stashes, predicted.peak_stashes[w]) << "worker " << w;
    EXPECT_EQ(run.workers[w].peak_stash_bytes, predicted.peak_stash_bytes[w]) << "worker " << w;
  }
}

inline void expect_below_limits(const Outcome& run, const Schedule& schedule) {
  if (!is_root()) return;
  for (std::size_t w = 0; w < run.workers.size(); ++w) {
    EXPECT_LE(run.workers[w].peak_stashes, schedule.memory_limits()[w]) << "worker " << w;
  }
}

/// Runs the schedule and checks everything that must hold for any schedule.
inline Outcome expect_sound(const Schedule& schedule, const model::Network& network, int steps) {
  EXPECT_EQ(plan::check(schedule).problem, "");
  const std::unique_ptr<model::Dataset> data = data_for(network);
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

}  // namespace starpipe::runtime::testing
