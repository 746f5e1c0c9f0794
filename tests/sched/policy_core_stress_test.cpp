// SPDX-License-Identifier: Apache-2.0
// The policy without StarPU, under many threads at once.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sched/opaque_tasks.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/plan/registry/registry.hpp"
#include "starpipe/plan/schedule/check.hpp"
#include "support/random_schedules.hpp"

namespace starpipe::sched {
namespace {

using plan::Discipline;
using plan::JobId;
using plan::Schedule;
using testing::Tasks;

/// Runs all jobs as StarPU would, several times. Each worker is a thread. The thread that ends the last
/// predecessor of a job pushes the job; the submitting thread pushes jobs without predecessors. Further
/// threads push pinned and free tasks meanwhile; most pinned tasks have an n, and not every worker can run
/// every free task. Idle workers sleep until they are woken, so a lost wake-up makes the test fail.
class Stress {
 public:
  explicit Stress(const Schedule& schedule)
      : schedule_(schedule),
        tasks_(schedule.id_count() + others + index(schedule.workers())),
        core_(schedule.workers(), Tasks::allowed),
        waiting_(schedule.id_count()),
        times_run_(schedule.id_count() + others),
        workers_(index(schedule.workers())),
        unfinished_(runs * schedule.job_count() + others) {
    for (std::size_t i = others / 2; i < others; i += 3) {
      const auto choosy =
          static_cast<unsigned>(i) % ((1U << schedule.workers()) - 1);  // at least one worker can run it
      tasks_.forbid(other(i), choosy);
    }
  }

  void run() {
    std::vector<int> logical(workers_.size());
    std::iota(logical.begin(), logical.end(), 0);
    {
      std::vector<std::jthread> threads;
      for (int w = 0; w < schedule_.workers(); ++w) threads.emplace_back([this, w] { work(w); });
      threads.emplace_back([this] { push_pinned(); });
      threads.emplace_back([this] { push_free(); });
      for (int i = 0; i < runs && !stuck_; ++i) {
        // Meanwhile workers pop pinned and free tasks.
        core_.begin(schedule_, logical);
        submit();
        for (auto left = jobs_left_.load(); left != 0 && !stuck_; left = jobs_left_) jobs_left_.wait(left);
      }
    }
    check();
  }

  /// Returns how often `pop` gave nothing to a worker with ready jobs.
  [[nodiscard]] int refusals() const {
    return std::accumulate(workers_.begin(), workers_.end(), 0,
                           [](int sum, const Worker& worker) { return sum + worker.refusals; });
  }

 private:
  static constexpr int runs = 3;
  static constexpr std::size_t others = 1000;  // number of other tasks: half of them pinned, half free
  static constexpr std::chrono::seconds longest_sleep{60};

  struct Worker {
    std::atomic<int> ready = 0;  // at most the number of its jobs that are pushed and not popped
    // For the worker's thread only:
    std::vector<JobId> ran;
    int live = 0;  // number of stashes
    int max_live = 0;
    int refusals = 0;
    std::vector<bool> ran_pinned = std::vector<bool>(others / 2);
  };
  [[nodiscard]] Worker& at(int worker) { return workers_[index(worker)]; }

  [[nodiscard]] std::size_t other(std::size_t i) const { return schedule_.id_count() + i; }
  // A pinned task that ends its worker.
  [[nodiscard]] std::size_t last(int worker) const { return other(others) + index(worker); }

  void submit() {
    jobs_left_ = schedule_.job_count();
    for (const JobId id : schedule_.order()) waiting_[id] = schedule_.pred_count(id);
    // A snapshot: meanwhile workers count down, and push the jobs that become ready.
    for (const JobId id : schedule_.order()) {
      if (schedule_.pred_count(id) == 0) push(id);
    }
  }
  void push(JobId id) {
    core_.push(schedule_.compute(id), tasks_[id], id);
    ++at(schedule_.compute(id)).ready;
  }
  // n of pinned task i: many tasks of a worker have the same, and some none.
  [[nodiscard]] static std::int64_t n_of(std::size_t i) {
    return i % 13 == 0 ? PolicyCore::no_n : static_cast<std::int64_t>(i * 7919 % 17) - 8;
  }
  void push_pinned() {
    for (std::size_t i = 0; i < others / 2; ++i) {
      core_.push(static_cast<int>(i) % schedule_.workers(), tasks_[other(i)], std::nullopt, n_of(i));
      pinned_pushed_ = i + 1;
      if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // `pushed`: number of pinned tasks that had been pushed before the worker popped task i.
  void run_pinned(int worker, std::size_t i, std::size_t pushed) {
    if (static_cast<int>(i) % schedule_.workers() != worker) ++misplaced_;
    std::vector<bool>& ran = at(worker).ran_pinned;
    for (std::size_t j = index(worker); j < pushed; j += index(schedule_.workers())) {
      if (!ran[j] && std::pair(n_of(j), j) < std::pair(n_of(i), i)) ++overtaken_;
    }
    ran[i] = true;
  }
  // In bursts, so that workers fall asleep in between.
  void push_free() {
    for (std::size_t i = others / 2; i < others; ++i) {
      (void)core_.push_free(tasks_[other(i)],
                            static_cast<int>(i % 7));  // `push_free` has notified the worker
      if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void work(int worker) {
    for (;;) {
      const int ready = at(worker).ready;
      const std::size_t pinned_pushed = pinned_pushed_;
      const PolicyCore::Task task = core_.pop(worker);
      if (task == nullptr) {
        if (ready > 0) ++at(worker).refusals;
        if (core_.wait(worker, longest_sleep)) continue;
        stuck_ = true;
        jobs_left_ = 0;
        jobs_left_.notify_all();
        return;
      }
      (void)core_.start(worker);
      const std::size_t number = tasks_.number(task);
      if (number >= other(others)) return;
      if (!Tasks::allowed(task, worker)) ++misplaced_;
      ++times_run_[number];
      if (number < schedule_.id_count()) {
        run_job(worker, static_cast<JobId>(number));
      } else if (number < other(others / 2)) {
        run_pinned(worker, number - other(0), pinned_pushed);
      }
      if (--unfinished_ > 0) continue;
      for (int w = 0; w < schedule_.workers(); ++w) core_.push(w, tasks_[last(w)], std::nullopt);
    }
  }

  void run_job(int worker, JobId id) {
    if (waiting_[id] != 0) ++too_early_;
    Worker& here = at(worker);
    --here.ready;
    here.ran.push_back(id);
    const auto [stage, microbatch, pass] = schedule_.job(id);
    if (id == schedule_.stash_maker(stage, microbatch)) ++here.live;
    here.max_live = std::max(here.max_live, here.live);
    if (pass == plan::Pass::W || pass == plan::Pass::BW) --here.live;
    core_.finish(worker, id);
    schedule_.for_each_succ(id, [&](JobId next) {
      if (--waiting_[next] == 0) push(next);
    });
    if (--jobs_left_ == 0) jobs_left_.notify_all();
  }

  void check() {
    ASSERT_FALSE(stuck_) << unfinished_ << " tasks were never given";
    EXPECT_EQ(too_early_, 0);
    EXPECT_EQ(misplaced_, 0);
    EXPECT_EQ(overtaken_, 0) << "pinned tasks ran after one with a larger n";
    for (const JobId id : schedule_.order()) ASSERT_EQ(times_run_[id], runs) << to_string(schedule_.job(id));
    for (std::size_t i = 0; i < others; ++i) ASSERT_EQ(times_run_[other(i)], 1) << "task " << i;
    for (int w = 0; w < schedule_.workers(); ++w) {
      const auto& ran = at(w).ran;
      const auto order = schedule_.order(w);
      ASSERT_EQ(ran.size(), runs * order.size());
      for (std::size_t i = 0; i < ran.size(); ++i) {
        ASSERT_EQ(schedule_.compute(ran[i]), w);
        if (schedule_.discipline() != Discipline::ordered) continue;
        ASSERT_EQ(ran[i], order[i % order.size()]) << "job " << i << " of worker " << w;
      }
      if (schedule_.discipline() == Discipline::bounded) {
        EXPECT_LE(at(w).max_live, schedule_.memory_limits()[index(w)]);
      }
    }
  }

  const Schedule& schedule_;
  Tasks tasks_;
  PolicyCore core_;
  std::vector<std::atomic<int>> waiting_;
  std::vector<std::atomic<int>> times_run_;
  std::vector<Worker> workers_;
  std::atomic<std::size_t> unfinished_;  // number of tasks left in all runs
  std::atomic<std::size_t> jobs_left_ = 0;
  std::atomic<int> too_early_ = 0;
  std::atomic<int> misplaced_ = 0;
  std::atomic<int> overtaken_ = 0;
  std::atomic<std::size_t> pinned_pushed_ = 0;
  std::atomic<bool> stuck_ = false;
};

class Disciplines : public ::testing::TestWithParam<Discipline> {
 protected:
  static Schedule under(const Schedule& schedule, std::mt19937_64& random) {
    if (GetParam() != Discipline::bounded) return schedule.with(GetParam());
    return schedule.with(GetParam(), plan::testing::random_limits(random, schedule));
  }
};

TEST_P(Disciplines, ThousandsOfJobsOnManyThreads) {
  std::mt19937_64 random(1);
  for (const char* name : {"1f1b", "gpipe", "ddp", "lpp"}) {
    plan::ScheduleRequest request{.workers = 4, .microbatches = 500};
    if (std::string_view(name) == "lpp") request.groups = 2;
    const Schedule schedule = under(plan::make_schedule(name, request), random);
    ASSERT_EQ(plan::check(schedule).problem, "");
    SCOPED_TRACE(name);
    Stress(schedule).run();
    if (HasFatalFailure()) return;
  }
}

TEST_P(Disciplines, RandomSchedulesOnManyThreads) {
  std::mt19937_64 random(2);
  int runs = 0;
  int refusals = 0;
  while (runs < 20) {
    const plan::testing::Options options{.max_stages = 6,
                                         .max_microbatches = 40,
                                         .max_workers = 5,
                                         .one_worker_a_stash = GetParam() == Discipline::bounded,
                                         .sound_priority = 1};
    const Schedule schedule = under(Schedule(plan::testing::random_spec(random, options)), random);
    if (!plan::check(schedule).ok()) continue;
    SCOPED_TRACE(::testing::Message() << "run " << runs);
    Stress stress(schedule);
    stress.run();
    if (HasFatalFailure()) return;
    refusals += stress.refusals();
    ++runs;
  }
  EXPECT_EQ(refusals > 0, GetParam() != Discipline::greedy) << refusals;
}

INSTANTIATE_TEST_SUITE_P(All, Disciplines,
                         ::testing::Values(Discipline::ordered, Discipline::greedy, Discipline::bounded),
                         [](const auto& test) { return std::string(plan::to_string(test.param)); });

}  // namespace
}  // namespace starpipe::sched
