// SPDX-License-Identifier: Apache-2.0
// The policy without StarPU: what each discipline gives, in what order, and under many threads at once.
#include "starpipe/sched/policy_core.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <ostream>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "plan/random_schedules.hpp"
#include "starpipe/plan/check.hpp"
#include "starpipe/plan/registry.hpp"

namespace starpipe::sched {
namespace {

using plan::Discipline;
using plan::JobId;
using plan::Schedule;

// Tasks are opaque, so any addresses do. What is there: the workers that cannot run it, a bit each.
class Tasks {
 public:
  explicit Tasks(std::size_t count) : cells_(count) {}
  PolicyCore::Task operator[](std::size_t i) { return &cells_[i]; }
  void forbid(std::size_t i, unsigned workers) { cells_[i] = static_cast<char>(workers); }
  static bool allowed(PolicyCore::Task task, int worker) {
    return ((static_cast<unsigned>(*static_cast<char*>(task)) >> worker) & 1U) == 0;
  }
  std::size_t number(PolicyCore::Task task) const {
    return static_cast<std::size_t>(static_cast<char*>(task) - cells_.data());
  }

 private:
  std::vector<char> cells_;
};

bool always(PolicyCore::Task, int) { return true; }

constexpr std::array two_workers = {0, 1};

Schedule one_f_one_b(int workers, int microbatches) {
  return plan::make_schedule("1f1b", {.workers = workers, .microbatches = microbatches});
}

TEST(PolicyCore, OrderedWaitsForTheNextJob) {
  const Schedule schedule = one_f_one_b(2, 4);
  Tasks tasks(schedule.slots());
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const auto order = schedule.order(0);
  for (std::size_t i = order.size(); i-- > 1;) {
    core.push(0, tasks[order[i]], order[i]);
    EXPECT_EQ(core.pop(0), nullptr) << "the first job is not there yet";
  }
  core.push(0, tasks[order[0]], order[0]);
  for (const JobId id : order) {
    EXPECT_EQ(core.pop(0), tasks[id]) << to_string(schedule.job(id));
    core.finish(0, id);
  }
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_EQ(core.pop(1), nullptr) << "worker 1 was given nothing";
}

TEST(PolicyCore, GreedyTakesTheSmallestThatIsReady) {
  const Schedule schedule = one_f_one_b(2, 4).with(Discipline::greedy);
  Tasks tasks(schedule.slots());
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const auto order = schedule.order(0);
  core.push(0, tasks[order[5]], order[5]);
  core.push(0, tasks[order[2]], order[2]);
  core.push(0, tasks[order[3]], order[3]);
  EXPECT_EQ(core.pop(0), tasks[order[2]]);
  core.push(0, tasks[order[0]], order[0]);
  EXPECT_EQ(core.pop(0), tasks[order[0]]);
  EXPECT_EQ(core.pop(0), tasks[order[3]]);
  EXPECT_EQ(core.pop(0), tasks[order[5]]);
  EXPECT_EQ(core.pop(0), nullptr);
}

TEST(PolicyCore, BoundedRefusesUntilAStashIsGivenBack) {
  const Schedule schedule = one_f_one_b(2, 4).with(Discipline::bounded, {2, 2});
  Tasks tasks(schedule.slots());
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const auto push = [&](JobId id) { core.push(0, tasks[id], id); };
  for (int b = 0; b < 4; ++b) push(schedule.forward(0, b));
  for (int b = 0; b < 2; ++b) {
    EXPECT_EQ(core.pop(0), tasks[schedule.forward(0, b)]);
    core.finish(0, schedule.forward(0, b));
  }
  EXPECT_EQ(core.pop(0), nullptr) << "two stashes are held";
  // A job that keeps no stash is not refused.
  push(schedule.backward(0, 0));
  EXPECT_EQ(core.pop(0), tasks[schedule.backward(0, 0)]);
  EXPECT_EQ(core.pop(0), nullptr) << "the stash is held until the backward pass has ended";
  core.finish(0, schedule.backward(0, 0));
  EXPECT_EQ(core.pop(0), tasks[schedule.forward(0, 2)]);
  EXPECT_EQ(core.pop(0), nullptr);
}

TEST(PolicyCore, InputsOfTheNextJobsInLineAreFetchedOnce) {
  const Schedule schedule = one_f_one_b(1, 4);
  const auto order = schedule.order(0);
  Tasks tasks(schedule.slots());
  PolicyCore core(1, always);
  core.begin(schedule, std::array{0});
  EXPECT_TRUE(core.fetch_before_push(0, std::nullopt)) << "pinned tasks run next";
  EXPECT_TRUE(core.fetch_before_push(0, order[0]));
  EXPECT_FALSE(core.fetch_before_push(0, order[2]));
  core.push(0, tasks[order[0]], order[0]);
  core.push(0, tasks[order[2]], order[2]);
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty()) << "the first is fetched, the third is not near";
  EXPECT_EQ(core.pop(0), tasks[order[0]]);
  EXPECT_THAT(core.to_fetch(0), ::testing::ElementsAre(tasks[order[2]])) << "now it is the second in line";
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty());
}

TEST(PolicyCore, GreedyFetchesWhatItWouldPick) {
  const Schedule schedule = one_f_one_b(2, 4).with(Discipline::greedy);
  const auto order = schedule.order(0);
  Tasks tasks(schedule.slots());
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  for (const std::size_t i : {3, 1, 2, 0}) {
    EXPECT_EQ(core.fetch_before_push(0, order[i]), i == 3 || i == 1) << "two were ready then";
    core.push(0, tasks[order[i]], order[i]);
  }
  EXPECT_THAT(core.to_fetch(0), ::testing::ElementsAre(tasks[order[0]]));
  EXPECT_EQ(core.pop(0), tasks[order[0]]);
  EXPECT_THAT(core.to_fetch(0), ::testing::IsEmpty()) << "the next was fetched when it was pushed";
}

TEST(PolicyCore, PinnedThenJobsThenFree) {
  const Schedule schedule = one_f_one_b(2, 2);
  Tasks tasks(schedule.slots() + 6);
  const std::size_t others = schedule.slots();
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const JobId first = schedule.order(0)[0];
  for (const auto& [i, priority] : {std::pair{0, 1}, std::pair{1, 5}, std::pair{2, 5}}) {
    EXPECT_EQ(core.push_free(tasks[others + static_cast<std::size_t>(i)], priority), std::nullopt)
        << "nobody is idle";
  }
  core.push(0, tasks[first], first);
  core.push(0, tasks[others + 3], std::nullopt);
  core.push(0, tasks[others + 4], std::nullopt);
  EXPECT_EQ(core.pop(0), tasks[others + 3]) << "pinned tasks in order of arrival";
  EXPECT_EQ(core.pop(0), tasks[others + 4]);
  EXPECT_EQ(core.pop(0), tasks[first]);
  EXPECT_EQ(core.pop(0), tasks[others + 1]) << "free tasks, large priorities first";
  core.push(0, tasks[others + 5], std::nullopt);
  EXPECT_EQ(core.pop(0), tasks[others + 5]);
  EXPECT_EQ(core.pop(1), tasks[others + 2]) << "any worker may take a free task";
  EXPECT_EQ(core.pop(1), tasks[others + 0]);
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_EQ(core.pop(1), nullptr);
}

TEST(PolicyCore, PinnedAndFreeTasksNeedNoSchedule) {
  Tasks tasks(2);
  PolicyCore core(1, always);
  EXPECT_EQ(core.pop(0), nullptr);
  core.push(0, tasks[0], std::nullopt);
  EXPECT_EQ(core.push_free(tasks[1], 0), 0) << "it asked in vain";
  EXPECT_EQ(core.pop(0), tasks[0]);
  EXPECT_EQ(core.pop(0), tasks[1]);
}

TEST(PolicyCore, ARefusedJobDoesNotHoldBackFreeTasks) {
  const Schedule schedule = one_f_one_b(2, 2);
  Tasks tasks(schedule.slots() + 1);
  PolicyCore core(2, always);
  core.begin(schedule, two_workers);
  const JobId second = schedule.order(0)[1];
  core.push(0, tasks[second], second);
  EXPECT_EQ(core.push_free(tasks[schedule.slots()], 0), std::nullopt);
  EXPECT_EQ(core.pop(0), tasks[schedule.slots()]);
  EXPECT_EQ(core.pop(0), nullptr);
}

TEST(PolicyCore, FreeTasksGoToWorkersThatCanRunThem) {
  Tasks tasks(2);
  PolicyCore core(2, [](PolicyCore::Task, int worker) { return worker == 1; });
  EXPECT_EQ(core.push_free(tasks[0], 0), std::nullopt);
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_EQ(core.push_free(tasks[1], 9), std::nullopt) << "worker 0 is idle, but cannot run it";
  EXPECT_EQ(core.pop(1), tasks[1]);
  EXPECT_EQ(core.pop(1), tasks[0]);
}

TEST(PolicyCore, AFreeTaskWakesOneIdleWorker) {
  Tasks tasks(4);
  PolicyCore core(3, always);
  for (int w = 0; w < 3; ++w) EXPECT_EQ(core.pop(w), nullptr);
  EXPECT_EQ(core.pop(1), nullptr) << "asking twice is being idle once";
  std::set<int> woken;
  for (std::size_t i = 0; i < 3; ++i) woken.insert(core.push_free(tasks[i], 0).value());
  EXPECT_EQ(woken, (std::set{0, 1, 2})) << "each once";
  EXPECT_EQ(core.push_free(tasks[3], 0), std::nullopt) << "all are on their way";
  for (int w = 0; w < 3; ++w) {
    EXPECT_NE(core.pop(w), nullptr);
    EXPECT_EQ(core.start(w), std::nullopt) << "nobody is idle";
  }
  EXPECT_NE(core.pop(0), nullptr) << "the fourth, found without being woken";
}

TEST(PolicyCore, AWorkerThatStartsSomethingElseWakesAnotherInItsPlace) {
  Tasks tasks(3);
  PolicyCore core(3, [](PolicyCore::Task, int worker) { return worker != 0; });
  for (const int w : {0, 1, 2}) EXPECT_EQ(core.pop(w), nullptr);
  EXPECT_EQ(core.push_free(tasks[0], 0), 2);
  core.push(2, tasks[1], std::nullopt);
  EXPECT_EQ(core.pop(2), tasks[1]) << "pinned tasks first";
  EXPECT_EQ(core.start(2), 1) << "worker 0 is idle too, but cannot run the free task";
  EXPECT_EQ(core.start(2), std::nullopt) << "once";
  EXPECT_EQ(core.pop(1), tasks[0]);
  EXPECT_EQ(core.start(1), std::nullopt);
}

TEST(PolicyCore, AWorkerWithATaskFromElsewhereIsNotWoken) {
  Tasks tasks(1);
  PolicyCore core(2, always);
  for (const int w : {0, 1}) EXPECT_EQ(core.pop(w), nullptr);
  EXPECT_EQ(core.start(1), std::nullopt) << "StarPU gave it one that we never saw";
  EXPECT_EQ(core.push_free(tasks[0], 0), 0);
}

TEST(PolicyCore, WaitEndsWhenAFreeTaskIsTheWorkersToTake) {
  Tasks tasks(2);
  PolicyCore core(2, always);
  for (const int w : {0, 1}) EXPECT_EQ(core.pop(w), nullptr);
  const int first = core.push_free(tasks[0], 0).value();
  core.wait(first, std::chrono::minutes(1));  // pushed before it waits: must not sleep
  const int second = core.push_free(tasks[1], 0).value();
  EXPECT_NE(first, second);
  core.wait(second, std::chrono::minutes(1));
  EXPECT_NE(core.pop(second), nullptr);
}

TEST(PolicyCore, WorkersOfStarPUMayHaveOtherNumbers) {
  const Schedule schedule = one_f_one_b(3, 2);
  Tasks tasks(schedule.slots());
  PolicyCore core(4, always);
  // This rank has the schedule's workers 1 and 2, as workers 3 and 1.
  const std::array logical = {-1, 2, -1, 1};
  core.begin(schedule, logical);
  for (const auto& [worker, of_schedule] : {std::pair{1, 2}, std::pair{3, 1}}) {
    for (const JobId id : schedule.order(of_schedule)) core.push(worker, tasks[id], id);
    for (const JobId id : schedule.order(of_schedule)) {
      EXPECT_EQ(core.pop(worker), tasks[id]);
      core.finish(worker, id);
    }
  }
  EXPECT_EQ(core.pop(0), nullptr);
  EXPECT_NO_THROW(core.begin(schedule, logical)) << "all jobs of this rank have ended";
}

TEST(PolicyCore, ARunEndsBeforeTheNextBegins) {
  const Schedule schedule = one_f_one_b(1, 1);
  const Schedule other = one_f_one_b(1, 3).with(Discipline::greedy);
  Tasks tasks(other.slots());
  const std::array logical = {0};
  PolicyCore core(1, always);
  core.begin(schedule, logical);
  EXPECT_THROW(core.begin(schedule, logical), std::logic_error) << "no job has run";
  for (const JobId id : schedule.order(0)) {
    core.push(0, tasks[id], id);
    ASSERT_EQ(core.pop(0), tasks[id]);
    EXPECT_THROW(core.begin(schedule, logical), std::logic_error) << "a popped job has not ended";
    core.finish(0, id);
  }
  core.begin(other, logical);
  const JobId last = other.order(0).back();
  core.push(0, tasks[last], last);
  EXPECT_EQ(core.pop(0), tasks[last]) << "the second schedule's discipline";
}

// Idle workers pop between runs, when the schedule of the last one may be gone. (Address sanitizer's to see.)
TEST(PolicyCore, NeedsNoScheduleAfterTheLastJob) {
  PolicyCore core(2, always);
  for (const Discipline discipline : {Discipline::ordered, Discipline::greedy, Discipline::bounded}) {
    // All jobs on worker 0, none on worker 1.
    const plan::ScheduleRequest request{.workers = 2, .microbatches = 2, .stage_workers = {0, 0}};
    const std::vector<int> limits =
        discipline == Discipline::bounded ? std::vector<int>{4, 4} : std::vector<int>{};
    auto schedule = std::make_unique<Schedule>(plan::make_schedule("1f1b", request).with(discipline, limits));
    Tasks tasks(schedule->slots());
    core.begin(*schedule, two_workers);
    for (const JobId id : plan::topological_order(*schedule)) {
      core.push(0, tasks[id], id);
      ASSERT_EQ(core.pop(0), tasks[id]);
      core.finish(0, id);
    }
    schedule.reset();
    EXPECT_EQ(core.pop(0), nullptr);
    EXPECT_EQ(core.pop(1), nullptr);
  }
}

TEST(PolicyCore, AWorkerThatDoesNotExist) {
  Tasks tasks(1);
  PolicyCore core(2, always);
  EXPECT_THROW(core.push(2, tasks[0], std::nullopt), std::out_of_range);
}

// ---- many threads ----

/// Runs all jobs as StarPU would, several times over: each worker on a thread of its own, a job pushed by the
/// thread that ended its last predecessor, roots by the submitting thread, pinned and free tasks by others
/// meanwhile, some of the free ones not for every worker. Idle workers sleep until they are woken, so a
/// wake-up that gets lost is seen.
class Stress {
 public:
  explicit Stress(const Schedule& schedule)
      : schedule_(schedule),
        tasks_(schedule.slots() + others + static_cast<std::size_t>(schedule.workers())),
        core_(schedule.workers(), Tasks::allowed),
        waiting_(schedule.slots()),
        times_run_(schedule.slots() + others),
        workers_(static_cast<std::size_t>(schedule.workers())),
        unfinished_(runs * schedule.job_count() + others) {
    for (std::size_t i = others / 2; i < others; i += 3) {
      const auto choosy = static_cast<unsigned>(i) % ((1U << schedule.workers()) - 1);  // never all of them
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
        // While workers pop what is no job.
        core_.begin(schedule_, logical);
        submit();
        for (auto left = jobs_left_.load(); left != 0 && !stuck_; left = jobs_left_) jobs_left_.wait(left);
      }
    }
    check();
  }

  /// How often a worker that had jobs got none.
  [[nodiscard]] int refusals() const {
    return std::accumulate(workers_.begin(), workers_.end(), 0,
                           [](int sum, const Worker& worker) { return sum + worker.refusals; });
  }

 private:
  static constexpr int runs = 3;
  static constexpr std::size_t others = 1000;  // half of them pinned, half free
  static constexpr std::chrono::seconds longest_sleep{60};

  struct Worker {
    std::atomic<int> ready = 0;  // no more than its jobs that are pushed and not popped
    // Its own thread's:
    std::vector<JobId> ran;
    int live = 0;  // stashes
    int most_live = 0;
    int refusals = 0;
  };
  [[nodiscard]] Worker& at(int worker) { return workers_[static_cast<std::size_t>(worker)]; }

  [[nodiscard]] std::size_t other(std::size_t i) const { return schedule_.slots() + i; }
  // A pinned task that ends its worker.
  [[nodiscard]] std::size_t last(int worker) const {
    return other(others) + static_cast<std::size_t>(worker);
  }

  void submit() {
    jobs_left_ = schedule_.job_count();
    for (const JobId id : schedule_.order()) waiting_[id] = schedule_.pred_count(id);
    // A snapshot: workers count down meanwhile, and push what they free themselves.
    for (const JobId id : schedule_.order()) {
      if (schedule_.pred_count(id) == 0) push(id);
    }
  }
  void push(JobId id) {
    core_.push(schedule_.compute(id), tasks_[id], id);
    ++at(schedule_.compute(id)).ready;
  }
  void push_pinned() {
    for (std::size_t i = 0; i < others / 2; ++i) {
      core_.push(static_cast<int>(i) % schedule_.workers(), tasks_[other(i)], std::nullopt);
    }
  }
  // In bursts, so that workers fall asleep in between.
  void push_free() {
    for (std::size_t i = others / 2; i < others; ++i) {
      (void)core_.push_free(tasks_[other(i)], static_cast<int>(i % 7));  // it has notified the worker itself
      if (i % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void work(int worker) {
    for (;;) {
      const int ready = at(worker).ready;
      const PolicyCore::Task task = core_.pop(worker);
      if (task == nullptr) {
        if (ready > 0) ++at(worker).refusals;
        if (sleep(worker)) continue;
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
      if (number < schedule_.slots()) run_job(worker, static_cast<JobId>(number));
      if (--unfinished_ > 0) continue;
      for (int w = 0; w < schedule_.workers(); ++w) core_.push(w, tasks_[last(w)], std::nullopt);
    }
  }

  /// False when nobody woke it.
  bool sleep(int worker) {
    const auto before = std::chrono::steady_clock::now();
    core_.wait(worker, longest_sleep);
    return std::chrono::steady_clock::now() - before < longest_sleep;
  }

  void run_job(int worker, JobId id) {
    if (waiting_[id] != 0) ++too_early_;
    Worker& here = at(worker);
    --here.ready;
    here.ran.push_back(id);
    const plan::Pass pass = schedule_.job(id).pass;
    if (pass == plan::Pass::F) ++here.live;
    here.most_live = std::max(here.most_live, here.live);
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
        EXPECT_LE(at(w).most_live, schedule_.memory_limits()[static_cast<std::size_t>(w)]);
      }
    }
  }

  const Schedule& schedule_;
  Tasks tasks_;
  PolicyCore core_;
  std::vector<std::atomic<int>> waiting_;
  std::vector<std::atomic<int>> times_run_;
  std::vector<Worker> workers_;
  std::atomic<std::size_t> unfinished_;  // tasks of all runs
  std::atomic<std::size_t> jobs_left_ = 0;
  std::atomic<int> too_early_ = 0;
  std::atomic<int> misplaced_ = 0;
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
