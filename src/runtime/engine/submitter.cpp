// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/submitter.hpp"

#include <limits>
#include <mutex>

#include <fmt/format.h>
#include <starpu.h>
#include <starpu_mpi.h>

#include "base/environment.hpp"
#include "runtime/engine/memory_need.hpp"
#include "starpipe/base/error.hpp"
#include "starpipe/base/index.hpp"
#include "starpipe/sched/starpu_policy.hpp"

namespace starpipe::runtime {

static_assert(sched::PolicyCore::fetched_ahead == jobs_fetched_ahead, "the need of a GPU is predicted by it");
namespace {

// Returns StarPU's mode for an access. `known_worker`: the worker of the task is known before it runs.
//
// With known workers all tasks that add to an accumulator run sequentially on one worker, its writer, so
// StarPU need not order them. It must not do so either: with an exclusive mode it would grant the datum to a
// job that the discipline refuses, and the job that the discipline waits for would never get the datum. So
// these tasks share the datum, as readers do. `close` takes the datum for itself, and so the readers of the
// sum follow all additions. Policies that choose among the workers of the rank refuse no job: there StarPU
// serialises the additions.
starpu_data_access_mode mode_of(Access access, bool known_worker) {
  switch (access) {
    case Access::read:
    case Access::precede:
      return STARPU_R;
    case Access::write:
      return STARPU_W;
    case Access::update:
      return STARPU_RW;
    case Access::accumulate:
      return known_worker ? STARPU_R : static_cast<starpu_data_access_mode>(STARPU_RW | STARPU_COMMUTE);
  }
  return STARPU_RW;
}

}  // namespace

// `insert` lets no arrival end while it inserts a task that depends on arrivals (Emulation::hold). If
// StarPU's limit stopped this insertion, it would wait for submitted tasks to end, and these may wait for
// arrivals. A worker that chooses among ready jobs may also refuse all of them, to keep its memory limit,
// until a job becomes ready that is not inserted yet.
void check_submission_limits(const plan::Schedule& schedule, bool emulated) {
  const bool chooses = schedule.discipline() != plan::Discipline::ordered;
  if (!emulated && !chooses) return;
  for (const char* name : {"STARPU_LIMIT_MAX_SUBMITTED_TASKS", "STARPU_LIMIT_MIN_SUBMITTED_TASKS"}) {
    require_input(environment(name).value_or("").empty(), name,
                  fmt::format("unset it: it limits the submitted tasks, and {} may then wait for "
                              "ever for a task that was not submitted",
                              emulated ? "a run with runtime.emulate" : "a run with schedule.dynamic"));
  }
}

std::optional<int> submission_window(const Session& session, const plan::Schedule& schedule, int window) {
  // `core()`: not a core of the CPU, but our policy.
  const bool keeps_order =
      session.core() != nullptr || session.choice().control == StarpuControl::worker_order;
  if (!keeps_order || schedule.discipline() != plan::Discipline::ordered) return std::nullopt;
  return window;
}

Submitter::Submitter(const Session& session, const plan::Schedule& schedule, const TaskGraph& graph,
                     const RankTasks& tasks, StepData& data, TaskRunner& runner, Emulation* emulation,
                     std::optional<int> window)
    : session_(session),
      schedule_(schedule),
      graph_(graph),
      tasks_(tasks),
      data_(data),
      runner_(runner),
      emulation_(emulation),
      window_(window) {}

void Submitter::submit_step() {
  data_.fetch_weights();
  for (std::size_t i = 0; i < tasks_.tasks.size(); ++i) {
    const std::span<const DataAccess> data = graph_.tasks()[tasks_.tasks[i]].data;
    wait_for_room();
    for (const DataAccess& access : data) data_.prepare(access.datum);
    insert(graph_.tasks()[tasks_.tasks[i]]);
    for (const DataAccess& access : data) {
      if (tasks_.last_use[access.datum] != i) continue;
      if (emulation_ != nullptr) emulation_->drop(access.datum);
      data_.drop(access.datum);
    }
  }
}

// Waiting here cannot deadlock. All ranks insert tasks in one order. In this order every task comes after the
// tasks that it depends on, and each worker runs its tasks in it. Take the first unfinished task in this
// order. All earlier tasks have finished, on every rank. So the task waits for nothing, and its rank had room
// to insert it. This holds for data that share a slot as well: a slot's new datum comes after all tasks of
// the old one in this order.
void Submitter::wait_for_room() const {
  if (!window_ || starpu_task_nsubmitted() < *window_) return;
  require(starpu_task_wait_for_n_submitted(static_cast<unsigned>(*window_) / 2), "StarPU", "waiting for",
          "the submission window");
}

void Submitter::insert(const Task& task) {
  const bool is_local = session_.is_local(task.worker);
  const StarpuControl control = session_.choice().control;
  std::vector<starpu_data_descr> data;
  data.reserve(task.data.size() + 1);
  for (const DataAccess& access : task.data)
    data.push_back({data_.handle(access.datum), mode_of(access.access, session_.knows_workers())});
  if (const starpu_data_handle_t scratch = data_.scratch(task)) data.push_back({scratch, STARPU_SCRATCH});

  // A small n means a high priority. Tasks that are not jobs have the highest, since jobs may wait for them.
  // No job of the step waits for a norm or an update: these have the lowest, and run when no job can.
  const bool yields_to_jobs = task.kind == TaskKind::norm || task.kind == TaskKind::optimize;
  int priority = std::numeric_limits<int>::max();
  if (task.job) priority = -static_cast<int>(schedule_.turn(*task.job));
  if (yields_to_jobs) priority = std::numeric_limits<int>::min();
  void* sched_data = nullptr;
  if (session_.core() != nullptr && is_local) {
    const int to = session_.starpu_worker(task.worker);
    sched_data = yields_to_jobs ? sched::pack_pinned(to, 0) : sched::pack_sched_data(to, task.job);
  }
  int worker = -1;
  unsigned order = 0;
  if (control != StarpuControl::none && is_local) {
    worker = session_.starpu_worker(task.worker);
    if (task.job && control == StarpuControl::worker_order) order = session_.next_order(worker);
  }
  void (*const epilogue)(void*) = session_.on_gpus() ? TaskRunner::end_on_gpu : nullptr;
  std::vector<starpu_task*> awaited;
  std::unique_lock<std::mutex> arrivals_wait;  // until the task depends on its arrivals, none may end
  if (emulation_ != nullptr) {
    awaited = emulation_->arrivals(task);
    if (!awaited.empty()) arrivals_wait = emulation_->hold(task);
  }
  const std::string name = name_of(task, schedule_);
  TaskRunner::Argument* const argument = is_local ? runner_.new_argument(task, name) : nullptr;
  const int status = starpu_mpi_task_insert(
      session_.mpi().starpu_comm(), &runner_.codelet(task), STARPU_EXECUTE_ON_NODE,
      session_.map().rank_of(task.worker), STARPU_DATA_MODE_ARRAY, data.data(), static_cast<int>(data.size()),
      STARPU_CL_ARGS, argument, sizeof *argument, STARPU_PRIORITY, priority, STARPU_TASK_SCHED_DATA,
      sched_data, STARPU_EXECUTE_ON_WORKER, worker, STARPU_WORKER_ORDER, order, STARPU_NAME,
      is_local ? argument->name.data() : nullptr, STARPU_PROLOGUE_CALLBACK, TaskRunner::note_ready,
      STARPU_PROLOGUE_CALLBACK_ARG_NFREE, argument, STARPU_EPILOGUE_CALLBACK, epilogue,
      STARPU_TASK_DEPS_ARRAY, static_cast<int>(awaited.size()), awaited.data(), 0);
  require(status, "StarPU", "inserting", name);
}

}  // namespace starpipe::runtime
