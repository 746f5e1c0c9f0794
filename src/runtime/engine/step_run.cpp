// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_run.hpp"

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <starpu_mpi.h>

#include "base/environment.hpp"
#include "runtime/engine/memory_need.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/host/product_library.hpp"
#include "starpipe/base/error.hpp"
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

// Returns the data that this rank receives into memory of its own; none where nothing computes.
ReceivedData received_on(const Session& session, const TaskGraph& graph, bool computes) {
  if (!computes) return {};
  std::vector<int> rank_of;
  for (int w = 0; w < session.map().workers(); ++w) rank_of.push_back(session.map().rank_of(w));
  return std::move(received_data(graph, rank_of)[index(session.mpi().rank())]);
}

// Returns the largest number of tasks that a rank has submitted and not finished: `window` if our policy or
// `worker-order` runs an ordered schedule. Returns nullopt if the whole step must be submitted at once,
// because the policy chooses among ready jobs and its choice would depend on the window.
std::optional<int> submission_window(const Session& session, const plan::Schedule& schedule, int window) {
  // `core()`: not a core of the CPU, but our policy.
  const bool keeps_order =
      session.core() != nullptr || session.choice().control == StarpuControl::worker_order;
  if (!keeps_order || schedule.discipline() != plan::Discipline::ordered) return std::nullopt;
  return window;
}

// Where many ranks share few cores, the submission of whole steps would keep their first jobs waiting for a
// core. So a rank is a few tasks of each worker ahead there.
std::optional<int> submitted_ahead(const Session& session, std::optional<int> window) {
  constexpr int tasks_of_worker = 64;
  if (!window || patience == 1) return window;
  return std::min(*window, tasks_of_worker * session.map().count(session.mpi().rank()));
}

// True if weights may go by relays, which need the weights in main memory, and a real network. An evaluation
// fetches directly.
bool uses_relays(const Session& session, const StepSetup& setup) {
  const bool emulates_links = setup.emulated != nullptr && setup.emulated->links.takes_time();
  return setup.optimizer != nullptr && !on_simgrid && !session.on_gpus() && !emulates_links;
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
                  fmt::format("unset it: it limits the submitted tasks, and {} may then wait "
                              "indefinitely for a task that was not submitted",
                              emulated ? "a run with runtime.emulate" : "a run with schedule.dynamic"));
  }
}

namespace {

bool uses_home(const plan::Schedule& schedule, plan::Home home) {
  for (int s = 0; s < schedule.stages(); ++s) {
    for (int b = 0; b < schedule.microbatches(); ++b) {
      if (schedule.home(s, b) == home) return true;
    }
  }
  return false;
}

}  // namespace

void check_homes_of_gpus(const plan::Schedule& schedule, const WorkerMap& map) {
  require_input(!uses_home(schedule, plan::Home::disk), "schedule.home",
                "disk: GPUs do not copy stashes to disks");
  for (const plan::JobId id : schedule.order()) {
    if (!plan::is_copy(schedule.job(id).pass)) continue;
    const auto [from, to] = schedule.ends(id);
    require_input(
        map.rank_of(from) == map.rank_of(to), "schedule.home",
        fmt::format(
            "worker:{}: GPUs copy stashes to GPUs of their rank only, and worker {} is on another one",
            *schedule.peer(id), schedule.job(id).pass == plan::Pass::O ? from : to));
  }
}

void check_homes(const plan::Schedule& schedule, const RuntimeConfig& config, int ranks) {
  if (!schedule.copies()) return;
  if (config.uses_gpus()) {
    // StepRun checks another mapping, which is not known here.
    if (config.mapping == MappingKind::linear)
      check_homes_of_gpus(schedule, WorkerMap(schedule.workers(), ranks));
    require_input(std::ranges::count(config.device, cpu_device) == 0, "schedule.home",
                  "host: needs GPUs for all workers; stashes of cores are in the main memory of their host");
    return;
  }
  if (config.emulate) {
    for (const auto& [home, link] :
         {std::pair(plan::Home::host, &config.emulate->host), {plan::Home::disk, &config.emulate->disk}}) {
      require_input(
          config.emulate->copy || *link || !uses_home(schedule, home), "runtime.emulate.copy",
          fmt::format("is needed with the home {0}, or {0}_link in the file of runtime.emulate.links",
                      plan::to_string(home)));
    }
    require_input(config.emulate->copy || config.emulate->peer_copy || !config.emulate->links.shared(),
                  "runtime.emulate.copy",
                  "is needed where stashes go to other workers on links that transfers share");
    return;
  }
  require_input(!uses_home(schedule, plan::Home::host), "schedule.home",
                "host: the workers are cores, whose stashes are in the main memory of their host already");
  if (!uses_home(schedule, plan::Home::disk)) return;
  require_input(!config.stash_folder.empty(), "runtime.stash_folder", "is needed with the home disk");
  static_cast<void>(StashFile(config.stash_folder));  // for its errors
}

void check_homes(const plan::Schedule& schedule, const PolicyChoice& policy) {
  require_input(
      !schedule.copies() || policy.starpu == sched::policy_name, "schedule.home",
      fmt::format("copies of stashes need the policy {}, which leaves workers to copies alone; not {}",
                  sched::policy_name, policy.name));
}

StepRun::StepRun(const Session& session, TaskGraph graph, const StepSetup& setup)
    : session_(session),
      schedule_(setup.schedule),
      graph_(std::move(graph)),
      tasks_(tasks_of_rank(graph_, session.local_workers())),
      received_(received_on(session, graph_, setup.emulated == nullptr && !on_simgrid)),
      context_{session, schedule_, setup.network, graph_, tasks_, received_},
      meter_(graph_, schedule_.workers(), session.local_workers()),
      window_(submission_window(session, schedule_, setup.window)),
      ahead_(submitted_ahead(session, window_)),
      slots_(graph_, window_, session.moves_stashes()),
      data_(context_, slots_, window_, setup.start, setup.training),
      relays_(uses_relays(session, setup) ? std::make_unique<Relays>(context_, data_) : nullptr),
      gathering_(context_, data_),
      expected_(schedule_, on_simgrid ? setup.emulated : nullptr),
      emulation_(setup.emulated == nullptr || on_simgrid
                     ? nullptr
                     : std::make_unique<Emulation>(*setup.emulated, context_, data_)),
      finite_(graph_, schedule_.workers(), session.on_gpus(), setup.finds_nonfinite),
      stashes_(uses_home(schedule_, plan::Home::disk) && setup.emulated == nullptr
                   ? std::make_unique<StashFile>(setup.stash_folder)
                   : nullptr),
      progress_(graph_, session.local_workers(), setup.optimizer == nullptr),
      watched_{graph_, schedule_, [this] { return status(); }},
      runner_(session,
              {.graph = &graph_,
               .network = &setup.network,
               .optimizer = setup.optimizer,
               .loss_scale = 1.0F / static_cast<float>(schedule_.whole_microbatches())},
              {meter_, data_, expected_, finite_, progress_, stashes_.get()}, emulation_.get()) {
  if (session.moves_stashes()) check_homes_of_gpus(schedule_, session.map());
  if (setup.emulated == nullptr) take_product_buffers(session.map().count(session.mpi().rank()));
}

RankStatus StepRun::status() const {
  RankStatus status = progress_.status();
  if (emulation_) status.transfer_for = emulation_->oldest_transfer().value_or(-1);
  return status;
}

void StepRun::submit() {
  if (relays_) relays_->send();
  data_.fetch_weights();
  for (std::size_t i = 0; i < tasks_.tasks.size(); ++i) {
    const std::span<const DataAccess> data = graph_.tasks()[tasks_.tasks[i]].data;
    wait_for_room();
    for (const DataAccess& access : data) {
      data_.prepare(access.datum);
      const auto received = received_.turns.find(access.datum);
      if (received == received_.turns.end() || received->second.first_use != tasks_.tasks[i]) continue;
      if (received->second.previous) wait_for(access.datum, *received->second.previous);
      if (graph_.data()[access.datum].kind != DataKind::gradient_segment) continue;
      const std::optional<std::uint32_t>& replaced = graph_.segment(access.datum).replaces;
      if (replaced && !session_.on_gpus()) wait_for(access.datum, *replaced);
    }
    insert(graph_.tasks()[tasks_.tasks[i]]);
    data_.fetch_ahead(graph_.tasks()[tasks_.tasks[i]]);
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
void StepRun::wait_for_room() const {
  if (!ahead_ || starpu_task_nsubmitted() < *ahead_) return;
  require(starpu_task_wait_for_n_submitted(static_cast<unsigned>(*ahead_) / 2), "StarPU", "waiting for",
          "the submission window");
}

// The wait goes forward in the graph's order of tasks, as all waits do: so it adds no cycle.
void StepRun::wait_for(std::size_t datum, std::size_t previous) const {
  if (data_.handle(datum) == data_.handle(previous)) return;  // StarPU keeps the order of tasks on a handle
  static starpu_codelet wait = [] {
    starpu_codelet codelet{};
    starpu_codelet_init(&codelet);
    codelet.where = STARPU_NOWHERE;
    codelet.nbuffers = 2;
    codelet.modes[0] = codelet.modes[1] = STARPU_W;
    codelet.name = "buffer";
    return codelet;
  }();
  require(starpu_task_insert(&wait, STARPU_W, data_.handle(previous), STARPU_W, data_.handle(datum), 0),
          "StarPU", "inserting", "the wait for a buffer");
}

void StepRun::insert(const Task& task) {
  const bool is_local = session_.is_local(task.worker);
  const StarpuControl control = session_.choice().control;
  const bool moves = session_.moves_stashes() && is_stash_copy(task.kind);
  bool moves_one = false;
  std::vector<starpu_data_descr> data;
  data.reserve(task.data.size() + 1);
  for (const DataAccess& access : task.data) {
    starpu_data_access_mode mode = mode_of(access.access, session_.knows_workers());
    // Otherwise the receiver would have to keep what arrives while its buffers are in use.
    if (emulation_ == nullptr && !on_simgrid && !is_local && waits_for_buffer(task, access, graph_))
      mode = static_cast<starpu_data_access_mode>(mode | STARPU_SSEND);
    if (moves && graph_.data()[access.datum].kind == DataKind::stash) {
      if (std::exchange(moves_one, true)) continue;  // to or from another worker: the same handle
      mode = STARPU_RW;
    }
    data.push_back({data_.handle(access.datum), mode});
  }
  if (const starpu_data_handle_t scratch = data_.scratch(task)) data.push_back({scratch, STARPU_SCRATCH});

  // A small n means a high priority. Tasks that are not jobs have the highest, since jobs may wait for them.
  // No job of the step waits for a norm or an update: these have the lowest, and run when no job can.
  const bool yields_to_jobs = task.kind == TaskKind::norm || task.kind == TaskKind::optimize;
  int priority = std::numeric_limits<int>::max();
  if (task.job) priority = -static_cast<int>(schedule_.turn(*task.job));
  // StarPU-MPI sends messages that are ready together in the order of priorities. No job waits for a sum of
  // gradients, so the messages of jobs go first. (The policy starpipe does not order tasks by this number.)
  const bool sums = task.kind == TaskKind::add || task.kind == TaskKind::copy;
  if (yields_to_jobs || (sums && session_.core() != nullptr)) priority = std::numeric_limits<int>::min();
  void* sched_data = nullptr;
  if (session_.core() != nullptr && is_local) {
    const int to = session_.starpu_worker(task.worker);
    sched_data = yields_to_jobs ? sched::pack_pinned(to, 0) : sched::pack_sched_data(to, task.job);
    if (task.channel) {
      const int channel = session_.copy_worker(task.worker, *task.channel == plan::Channel::in);
      sched_data = sched::pack_pinned(channel, schedule_.turn(*task.job));
    }
  }
  int worker = -1;
  unsigned order = 0;
  if (control != StarpuControl::none && is_local) {
    worker = session_.starpu_worker(task.worker);
    if (task.job && control == StarpuControl::worker_order) order = session_.next_order(worker);
  }
  void (*const epilogue)(void*) = session_.on_gpus() ? TaskRunner::end_on_gpu : nullptr;
  void (*const begin)(void*) = moves && is_local ? TaskRunner::begin_move : nullptr;
  std::vector<starpu_task*> awaited;
  std::unique_lock<std::mutex> arrivals_wait;  // until the task depends on its arrivals, none may end
  if (emulation_ != nullptr) {
    awaited = emulation_->arrivals(task);
    if (!awaited.empty()) arrivals_wait = emulation_->hold();
  }
  const std::string name = name_of(task, schedule_);
  TaskRunner::Argument* const argument = is_local ? runner_.new_argument(task, name) : nullptr;
  const int status = starpu_mpi_task_insert(
      session_.mpi().starpu_comm(), &runner_.codelet(task), STARPU_EXECUTE_ON_NODE,
      session_.map().rank_of(task.worker), STARPU_DATA_MODE_ARRAY, data.data(), static_cast<int>(data.size()),
      STARPU_CL_ARGS, argument, sizeof *argument, STARPU_PRIORITY, priority, STARPU_TASK_SCHED_DATA,
      sched_data, STARPU_EXECUTE_ON_WORKER, worker, STARPU_WORKER_ORDER, order, STARPU_NAME,
      is_local ? argument->name.data() : nullptr, STARPU_PROLOGUE_CALLBACK, TaskRunner::note_ready,
      STARPU_PROLOGUE_CALLBACK_ARG_NFREE, argument, STARPU_PROLOGUE_CALLBACK_POP, begin,
      STARPU_PROLOGUE_CALLBACK_POP_ARG_NFREE, argument, STARPU_EPILOGUE_CALLBACK, epilogue,
      STARPU_TASK_DEPS_ARRAY, static_cast<int>(awaited.size()), awaited.data(), 0);
  require(status, "StarPU", "inserting", name);
}

StepRun::Outcome StepRun::run(const std::string& name, int number, int data_step,
                              const model::Dataset* data) {
  finite_.begin_step();
  progress_.enter(StepPhase::beginning, number);
  meter_.reset();
  if (session_.core() != nullptr) session_.core()->begin(schedule_, session_.logical_workers());
  data_.begin_step(data_step, data);
  if (relays_) relays_->receive();
  // Ranks that start together have timelines that start together.
  session_.mpi().barrier();
  progress_.enter(StepPhase::running, number);
  Outcome outcome;
  const double start = clock_seconds();
  const bool trains = !schedule_.forward_only();
  if (trains) starpu_iteration_push(static_cast<unsigned long>(number));  // for traces
  submit();
  if (trains) starpu_iteration_pop();
  outcome.submission = clock_seconds() - start;
  require(starpu_mpi_wait_for_all(session_.mpi().starpu_comm()), "StarPU", "waiting for", "all tasks");
  progress_.enter(StepPhase::ending, number);
  session_.gpu_meters().end_step();
  session_.mpi().barrier();  // so the collective calls that follow do not wait
  outcome.seconds = clock_seconds() - start;
  if (const std::string unread = data_.data_problem(); !unread.empty()) {
    leave(number);
    throw RunFailure(fmt::format("{}: {}", name, unread), 2);
  }
  outcome.jobs = meter_.take_jobs();
  expected_.learn(outcome.jobs);
  return outcome;
}

}  // namespace starpipe::runtime
