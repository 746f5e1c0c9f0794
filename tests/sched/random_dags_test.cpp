// SPDX-License-Identifier: Apache-2.0
// 10,000 small random task graphs under the policy, on 1 to 8 workers: jobs of random schedules mixed with
// other tasks. Each graph must finish and leave the same values as a sequential run of its tasks.
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <starpu.h>

#include "sched/starpu.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "support/random_schedules.hpp"
#include "support/rounds.hpp"

namespace starpipe::sched {
namespace {

using plan::Discipline;
using plan::JobId;
using plan::Schedule;
using plan::testing::between;
using plan::testing::chance;
using plan::testing::Random;
using testing::StarPU;

constexpr int dags = 10'000;
constexpr int max_workers = 8;

enum class Kind {
  job,
  pinned,            // to a worker, by `pack_sched_data`
  pinned_with_n,     // by `pack_pinned`
  pinned_by_starpu,  // to a worker, by StarPU itself; the policy never sees it
  free,
  choosy,  // free, but some of the workers cannot run it
};

/// A task: the cells that it reads and writes, and how it is submitted to StarPU.
struct Step {
  Kind kind = Kind::free;
  std::uint64_t seed = 0;
  std::size_t cell = 0;  // the cell that it writes
  bool update = false;   // whether it reads this cell as well
  std::vector<std::size_t> reads = {};
  JobId job = 0;
  int worker = 0;            // StarPU's number of the worker of a job or pinned task
  std::uint32_t able = ~0U;  // bit w: whether worker w can run it
  int priority = 0;
};

// Neither commutative nor associative, so the result depends on the order of all values.
std::uint64_t fold(std::uint64_t value, std::uint64_t next) {
  return (std::rotl(value, 23) ^ next) * 0x9e3779b97f4a7c15U + 1;
}

template <class CellValue>
std::uint64_t value_of(const Step& step, CellValue cell_value) {
  std::uint64_t value = step.seed;
  if (step.update) value = fold(value, cell_value(0));
  for (std::size_t i = 0; i < step.reads.size(); ++i) value = fold(value, cell_value(i + 1));
  return value;
}

// ---- random task graphs ----

/// The jobs of a random schedule and other tasks, in the order of submission, from which StarPU derives the
/// dependencies. Each job writes its own cell from the cells of its predecessors. Other tasks read cells of
/// jobs and update shared cells.
class Dag {
 public:
  Dag(Random& random, int workers) : schedule_(draw_schedule(random, workers)), logical_(index(workers), -1) {
    const std::vector<int> starpu_worker = plan::testing::permutation(random, workers);
    for (int w = 0; w < schedule_.workers(); ++w) logical_[index(starpu_worker[index(w)])] = w;
    std::size_t done = 0;  // number of jobs added
    for (const JobId id : plan::topological_order(schedule_)) {
      while (chance(random, 0.4)) add_other(random, done);
      add_job(random, id, starpu_worker[index(schedule_.compute(id))]);
      ++done;
    }
    while (chance(random, 0.8)) add_other(random, done);
  }

  [[nodiscard]] const Schedule& schedule() const { return schedule_; }
  [[nodiscard]] const std::vector<int>& logical() const { return logical_; }
  [[nodiscard]] const std::vector<Step>& steps() const { return steps_; }
  [[nodiscard]] std::size_t cells() const { return schedule_.id_count() + shared; }

  /// Returns the cells after a sequential run of all steps.
  [[nodiscard]] std::vector<std::uint64_t> expected() const {
    std::vector<std::uint64_t> values(cells(), 0);
    for (const Step& step : steps_) {
      values[step.cell] =
          value_of(step, [&](std::size_t i) { return values[i == 0 ? step.cell : step.reads[i - 1]]; });
    }
    return values;
  }

 private:
  static constexpr int shared = 3;  // number of shared cells, which follow the cells of the jobs
  [[nodiscard]] std::size_t shared_cell(int i) const { return schedule_.id_count() + index(i); }

  static Schedule draw_schedule(Random& random, int workers) {
    const auto discipline = static_cast<Discipline>(between(random, 0, 2));
    const plan::testing::Options options{.max_stages = 4,
                                         .max_microbatches = 4,
                                         .max_workers = workers,
                                         .one_worker_a_stash = discipline == Discipline::bounded,
                                         .sound_priority = 1};
    for (;;) {
      const Schedule drawn(plan::testing::random_spec(random, options));
      const Schedule schedule = discipline == Discipline::bounded
                                    ? drawn.with(discipline, plan::testing::random_limits(random, drawn))
                                    : drawn.with(discipline);
      if (plan::check(schedule).ok()) return schedule;
    }
  }

  void add_job(Random& random, JobId id, int worker) {
    Step step{.kind = Kind::job, .seed = random(), .cell = id, .job = id, .worker = worker};
    schedule_.for_each_pred(id, [&](JobId before) { step.reads.push_back(before); });
    // A dependency that the schedule does not know: through a shared cell, a job of the oldest micro-batch
    // may wait for a job of a younger one. A memory limit could then deadlock, so bounded schedules have no
    // such dependencies.
    if (schedule_.discipline() != Discipline::bounded && chance(random, 0.3))
      step.reads.push_back(shared_cell(between(random, 0, shared - 1)));
    steps_.push_back(std::move(step));
  }

  void add_other(Random& random, std::size_t jobs_before) {
    const auto workers = static_cast<int>(logical_.size());
    Step step{.kind = static_cast<Kind>(between(random, 1, 5)),
              .seed = random(),
              .cell = shared_cell(between(random, 0, shared - 1)),
              .update = chance(random, 0.8),
              .worker = between(random, 0, workers - 1),
              .priority = between(random, -3, 3)};
    if (step.kind == Kind::choosy) {
      step.able = static_cast<std::uint32_t>(between(random, 1, (1 << workers) - 1));
    }
    if (jobs_before > 0 && chance(random, 0.5)) {
      const auto& earlier =
          schedule_.order()[index(between(random, 0, static_cast<int>(schedule_.job_count()) - 1))];
      if (std::ranges::find(steps_, earlier, &Step::cell) != steps_.end()) step.reads.push_back(earlier);
    }
    const std::size_t other = shared_cell(between(random, 0, shared - 1));
    if (other != step.cell) step.reads.push_back(other);
    steps_.push_back(std::move(step));
  }

  Schedule schedule_;
  std::vector<int> logical_;
  std::vector<Step> steps_;
};

// ---- StarPU ----

struct Ran {
  const Step* step = nullptr;
  std::atomic<int> times = 0;
  std::atomic<int> worker = -1;
};

void run_step(void** buffers, void* argument) {
  Ran& ran = *static_cast<Ran*>(argument);
  const auto cell = [&](std::size_t i) -> std::uint64_t& {
    return *reinterpret_cast<std::uint64_t*>(STARPU_VARIABLE_GET_PTR(buffers[i]));
  };
  const std::uint64_t value = value_of(*ran.step, cell);
  // Some tasks yield between reading and writing.
  for (std::uint64_t i = ran.step->seed % 8; i < 2; ++i) std::this_thread::yield();
  cell(0) = value;
  ran.worker = starpu_worker_get_id();
  ++ran.times;
}

int is_able(unsigned worker, starpu_task* task, unsigned /*implementation*/) {
  return static_cast<int>((static_cast<const Ran*>(task->cl_arg)->step->able >> worker) & 1U);
}

starpu_codelet& codelet() {
  static starpu_codelet only = [] {
    starpu_codelet result;
    starpu_codelet_init(&result);
    result.cpu_funcs[0] = run_step;
    result.can_execute = is_able;
    result.nbuffers = STARPU_VARIABLE_NBUFFERS;
    result.name = "fold";
    return result;
  }();
  return only;
}

void submit(const std::vector<starpu_data_handle_t>& cells, Ran& ran) {
  const Step& step = *ran.step;
  starpu_task* const task = starpu_task_create();
  task->cl = &codelet();
  task->cl_arg = &ran;
  task->nbuffers = static_cast<int>(step.reads.size()) + 1;
  task->handles[0] = cells[step.cell];
  task->modes[0] = step.update ? STARPU_RW : STARPU_W;
  for (std::size_t i = 0; i < step.reads.size(); ++i) {
    task->handles[i + 1] = cells[step.reads[i]];
    task->modes[i + 1] = STARPU_R;
  }
  task->priority = step.priority;
  if (step.kind == Kind::job) task->sched_data = pack_sched_data(step.worker, step.job);
  if (step.kind == Kind::pinned) task->sched_data = pack_sched_data(step.worker, std::nullopt);
  if (step.kind == Kind::pinned_with_n) task->sched_data = pack_pinned(step.worker, step.priority);
  if (step.kind == Kind::pinned_by_starpu) {
    task->execute_on_a_specific_worker = 1;
    task->workerid = static_cast<unsigned>(step.worker);
  }
  ASSERT_EQ(starpu_task_submit(task), 0);
}

/// Runs a graph and compares all cells.
void expect_right_values(const Dag& dag) {
  std::vector<std::uint64_t> values(dag.cells(), 0);
  std::vector<starpu_data_handle_t> cells(values.size());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    starpu_variable_data_register(&cells[i], STARPU_MAIN_RAM, reinterpret_cast<std::uintptr_t>(&values[i]),
                                  sizeof(values[i]));
  }
  std::vector<Ran> ran(dag.steps().size());
  active_policy_core()->begin(dag.schedule(), dag.logical());
  for (std::size_t i = 0; i < ran.size(); ++i) {
    ran[i].step = &dag.steps()[i];
    submit(cells, ran[i]);
  }
  starpu_task_wait_for_all();
  for (starpu_data_handle_t cell : cells) starpu_data_unregister(cell);
  EXPECT_EQ(values, dag.expected());
  for (const Ran& each : ran) {
    EXPECT_EQ(each.times, 1);
    const Kind kind = each.step->kind;
    if (kind != Kind::free && kind != Kind::choosy) {
      EXPECT_EQ(each.worker, each.step->worker);
    }
    EXPECT_TRUE((each.step->able >> each.worker & 1U) != 0) << "a worker that cannot run it";
  }
}

/// If the test hangs, ends the process with a message that says where. ctest's own limit is longer and says
/// nothing.
class Watchdog {
 public:
  explicit Watchdog(int workers)
      : thread_([this, workers](const std::stop_token& stop) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          for (int seen = -1; seen != now_;) {
            seen = now_;
            if (wake_.wait_for(lock, stop, std::chrono::seconds(60), [] { return false; })) return;
            if (stop.stop_requested()) return;
          }
          std::fprintf(stderr, "graph %d on %d workers does not end\n", now_.load(), workers);
          std::abort();
        }) {}
  void at(int dag) { now_ = dag; }

 private:
  std::atomic<int> now_ = 0;
  std::condition_variable_any wake_;
  std::jthread thread_;  // last member: the thread uses the others
};

class RandomDags : public ::testing::TestWithParam<int> {};

TEST_P(RandomDags, LeaveTheRightValues) {
  const int workers = GetParam();
  const StarPU starpu(workers);
  Watchdog watchdog(workers);
  for (int i = 0; i < rounds(dags / max_workers); ++i) {
    SCOPED_TRACE(::testing::Message() << "graph " << i);
    watchdog.at(i);
    Random random(static_cast<std::uint64_t>(workers * dags + i));
    expect_right_values(Dag(random, workers));
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(OnWorkers, RandomDags, ::testing::Range(1, max_workers + 1),
                         [](const auto& test) { return std::to_string(test.param); });

}  // namespace
}  // namespace starpipe::sched
