// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/task_runner.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#include "base/environment.hpp"
#include "base/signals.hpp"
#include "runtime/host/clock.hpp"
#include "runtime/host/product_library.hpp"
#include "runtime/session/memory_guard.hpp"
#include "runtime/session/mpi_polling.hpp"
#include "starpipe/base/index.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::size_t task_kinds = index(TaskKind::optimize) + 1;

#ifdef STARPIPE_WITH_CUDA
constexpr bool may_have_gpus = true;
#else
constexpr bool may_have_gpus = on_simgrid;
#endif

// SimGrid has no tasks without any length.
constexpr double shortest_microseconds = 1e-3;

// Returns which data of a task are verdicts. `waits`: of an update that waits for one.
std::vector<std::size_t> verdicts_of(TaskKind kind, bool waits) {
  switch (kind) {
    case TaskKind::judge:
      return {0};
    case TaskKind::norm:
      return {1};
    case TaskKind::merge:
      return {0, 1};
    default:
      return waits ? std::vector<std::size_t>{0} : std::vector<std::size_t>{};
  }
}

// The memory of a task on the worker that runs it.
struct TaskMemory {
  std::vector<model::Memory> data;
  model::Memory scratch;
};

// One per worker thread, so that its vector keeps its capacity and tasks do not allocate.
const TaskMemory& memory_of(const Task& task, void** buffers) {
  thread_local TaskMemory memory;
  const auto words = [&](std::size_t i) {
    return model::Memory(reinterpret_cast<void*>(STARPU_VECTOR_GET_PTR(buffers[i])),
                         STARPU_VECTOR_GET_NX(buffers[i]));
  };
  memory.data.clear();
  for (std::size_t i = 0; i < task.data.size(); ++i) memory.data.push_back(words(i));
  const auto buffer_count = static_cast<std::size_t>(STARPU_TASK_GET_NBUFFERS(starpu_task_get_current()));
  memory.scratch = buffer_count > task.data.size() ? words(task.data.size()) : model::Memory{};
  return memory;
}

}  // namespace

TaskRunner::TaskRunner(const Session& session, const KernelContext& context, const StepParts& parts,
                       Emulation* emulation)
    : session_(session), context_(context), parts_(parts), emulation_(emulation) {
  if (on_simgrid) starpu_profiling_status_set(STARPU_PROFILING_ENABLE);  // for the times of tasks
}

TaskRunner::Argument* TaskRunner::new_argument(const Task& task, std::string_view name) {
  static_assert(std::is_trivially_destructible_v<Argument>);  // StarPU calls free()
  void* const memory = std::malloc(sizeof(Argument));
  if (memory == nullptr) throw std::bad_alloc();
  auto* const argument = new (memory) Argument{.runner = this, .task = &task};
  name.copy(argument->name.data(), argument->name.size() - 1);
  argument->times.submitted = clock_seconds();
  return argument;
}

void TaskRunner::note_ready(void* argument) {
  Argument& ready = *static_cast<Argument*>(argument);
  ready.times.ready = clock_seconds();
  if (ready.runner->emulation_ && ready.task->job)
    ready.runner->emulation_->note_ready(*ready.task->job, ready.times.ready);
}

// Returns the stashes of O or L: where it comes from and where it goes to, if both are workers.
std::vector<std::uint32_t> TaskRunner::moved_stashes(const Task& task) const {
  std::vector<std::uint32_t> stashes;
  for (const DataAccess& access : task.data) {
    const bool is_stash = context_.graph->data()[access.datum].kind == DataKind::stash;
    if (is_stash && is_stash_copy(task.kind)) stashes.push_back(access.datum);
  }
  return stashes;
}

// Returns the memory node of each datum of a job. O takes a stash to the host's memory, or to the GPU of the
// worker that is its home, and L to the GPU of the job that reads it. Some data have no content and only put
// jobs in order. They stay in the host's memory: StarPU need not copy them.
std::vector<int> TaskRunner::nodes_of(const Task& task) const {
  const std::vector<std::uint32_t> moved = moved_stashes(task);
  const bool goes_to_host = task.kind == TaskKind::O && moved.size() == 1;
  std::vector<int> nodes;
  for (const DataAccess& access : task.data) {
    const DataKind kind = context_.graph->data()[access.datum].kind;
    if (!moved.empty() && kind == DataKind::stash) {
      if (access.datum != moved.front()) continue;  // StepRun::insert leaves it out
      nodes.push_back(goes_to_host ? STARPU_MAIN_RAM : session_.memory_node(task.worker));
    } else {
      nodes.push_back(kind == DataKind::end_of_pass ? STARPU_SPECIFIC_NODE_CPU : STARPU_SPECIFIC_NODE_LOCAL);
    }
  }
  nodes.push_back(STARPU_SPECIFIC_NODE_LOCAL);  // scratch memory
  return nodes;
}

starpu_codelet& TaskRunner::codelet(const Task& task) {
  static starpu_perfmodel expected_time = [] {
    starpu_perfmodel model{};
    model.type = STARPU_PER_ARCH;
    model.arch_cost_function = expected_microseconds;
    return model;
  }();
  // One codelet for each kind, and a last one for updates that wait for a verdict. Verdicts are read and
  // written on the host, so they stay in main memory, on GPUs too.
  static std::array<starpu_codelet, task_kinds + 1> codelets = [] {
    std::array<starpu_codelet, task_kinds + 1> all{};
    for (std::size_t k = 0; k < all.size(); ++k) {
      const auto kind = static_cast<TaskKind>(std::min(k, index(TaskKind::optimize)));
      starpu_codelet_init(&all[k]);
      all[k].cpu_funcs[0] = [](void** buffers, void* argument) { run_on_cpu(buffers, argument); };
      if (may_have_gpus) {
        all[k].cuda_funcs[0] = [](void** buffers, void* argument) { run_on_gpu(buffers, argument); };
        all[k].cuda_flags[0] = STARPU_CUDA_ASYNC;
      }
      all[k].nbuffers = STARPU_VARIABLE_NBUFFERS;
      all[k].name = to_string(kind).data();
      all[k].model = &expected_time;
      std::ranges::fill(all[k].nodes, STARPU_SPECIFIC_NODE_LOCAL);
      for (const std::size_t verdict : verdicts_of(kind, k == task_kinds)) {
        all[k].specific_nodes = 1;
        all[k].nodes[verdict] = STARPU_SPECIFIC_NODE_CPU;
      }
    }
    return all;
  }();
  const bool waits =
      task.kind == TaskKind::optimize && context_.graph->data()[task.data[0].datum].kind == DataKind::verdict;
  starpu_codelet& usual = codelets[waits ? task_kinds : index(task.kind)];
  if (!session_.moves_stashes() || !task.job || !session_.is_local(task.worker)) return usual;
  const std::pair key(task.kind, nodes_of(task));
  if (const auto known = codelets_.find(key); known != codelets_.end()) return known->second.codelet;
  NodesCodelet& added = codelets_.emplace(key, NodesCodelet{key.second, usual}).first->second;
  added.codelet.specific_nodes = 1;
  added.codelet.dyn_nodes = added.nodes.data();
  return added.codelet;
}

// Policies that plan by time ask for it. On SimGrid it is the duration of the task. There only jobs take
// time, as in plan::simulate.
double TaskRunner::expected_microseconds(starpu_task* task, starpu_perfmodel_arch* /*device*/,
                                         unsigned /*implementation*/) {
  const Argument& argument = *static_cast<const Argument*>(task->cl_arg);
  const bool moves = is_stash_copy(argument.task->kind) && argument.runner->session_.moves_stashes();
  if (!argument.task->job || moves) return on_simgrid ? shortest_microseconds : 1;
  const double expected = argument.runner->parts_.expected.microseconds(*argument.task->job);
  return on_simgrid ? std::max(expected, shortest_microseconds) : expected;
}

int TaskRunner::calling_worker() const {
  return session_.logical_worker(static_cast<int>(starpu_worker_get_id_check()));
}

void TaskRunner::run_on_cpu(void** buffers, void* argument) noexcept {
  Argument& running = *static_cast<Argument*>(argument);
  TaskRunner& runner = *running.runner;
  const Task& task = *running.task;
  if (is_stash_copy(task.kind) && runner.session_.moves_stashes()) return;  // StarPU has moved the stash
  TaskTimes& times = running.times;
  const RunningTask named(running.name.data());
  const TaskMemory& memory = memory_of(task, buffers);
  const bool copies = is_stash_copy(task.kind);
  const int worker = copies ? task.worker : runner.calling_worker();
  Meter& meter = runner.parts_.meter;
  runner.parts_.progress.start(task);
  const std::vector<std::size_t> received = meter.start(task, worker);
  if (copies && runner.emulation_ == nullptr) {
    times.start = clock_seconds();
    runner.copy_stash(task, memory.data);
    times.end = clock_seconds();
  } else if (runner.emulation_ == nullptr) {
    use_one_product_thread();
    note_task_begin();
    times.start = clock_seconds();
    run_kernel(runner.context_, task, memory.data, memory.scratch, runner.parts_.finite.flag(task));
    runner.parts_.finite.end(task);
    times.end = clock_seconds();
    note_task_end();
  } else if (task.job) {
    note_idle_worker();
    runner.emulation_->run(task, worker, received, times);
  } else {
    times.start = times.end = clock_seconds();
  }
  note_result();
  meter.end(task, worker, times);
  runner.parts_.progress.end(task);
}

void TaskRunner::copy_stash(const Task& task, std::span<const model::Memory> data) const noexcept {
  std::vector<model::Memory> stashes;
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (context_.graph->data()[task.data[i].datum].kind == DataKind::stash) stashes.push_back(data[i]);
  }
  if (stashes.size() == 2) {  // from a worker to another one
    std::ranges::copy(stashes[0].floats(), stashes[1].floats().begin());
    return;
  }
  for (const model::Memory& stash : stashes) {
    try {
      if (task.kind == TaskKind::O) {
        parts_.stashes->write(*task.job, stash);
      } else {
        parts_.stashes->read(*task.job - 1, stash);
      }
    } catch (const std::exception& error) {
      // Several ranks may share the disk. They take turns, so that one speaks and ends the run.
      sleep_through_signals(std::chrono::milliseconds(300 * std::min(session_.mpi().rank(), 10)));
      session_.mpi().abort(error.what());
    }
  }
}

// Returns when the kernels are on the stream; StarPU sees them end and calls end_on_gpu.
void TaskRunner::run_on_gpu(void** buffers, void* argument) noexcept {
  Argument& running = *static_cast<Argument*>(argument);
  TaskRunner& runner = *running.runner;
  const TaskMemory& memory = memory_of(*running.task, buffers);
  note_start_on_gpu(running);
  running.times.start = clock_seconds();
  run_kernel_on_stream(runner.context_, *running.task, memory.data, memory.scratch,
                       runner.parts_.finite.flag(*running.task));
}

void TaskRunner::note_start_on_gpu(Argument& starting) {
  const StepParts& parts = starting.runner->parts_;
  starting.worker = starting.runner->calling_worker();
  parts.progress.start(*starting.task);
  parts.meter.start(*starting.task, starting.worker);
  starting.runner->session_.gpu_meters().sample(starting.worker);
}

// Called at the end of the task, not at its start: a worker runs its tasks sequentially, so the meter counts
// the same.
void TaskRunner::note_simulated_start(Argument& ended) {
  note_start_on_gpu(ended);
  starpu_profiling_task_info* const times = starpu_task_get_current()->profiling_info;
  ended.times.start = starpu_timing_timespec_to_us(&times->start_time) * 1e-6;
  // StarPU calls a task ready when its inputs are on the rank. They may still be on their way to the GPU.
  // Where they are there, StarPU's own polling takes 2 us.
  constexpr double polling = 10e-6;
  const double asked = starpu_timing_timespec_to_us(&times->acquire_data_start_time) * 1e-6;
  const double arrived = starpu_timing_timespec_to_us(&times->acquire_data_end_time) * 1e-6;
  double& ready = ended.times.ready;
  if (arrived - asked > polling) ready = std::max(ready, arrived);
  ready = std::min(std::max(ready, ended.runner->weights_arrived(ended)), ended.times.start);
}

// Returns the time at which the weights that `reader` reads had come to its GPU from others. StarPU does not
// tell it. They count as
// there when the first task of the step that reads them on this GPU was ready.
double TaskRunner::weights_arrived(const Argument& reader) {
  double last = 0;
  for (const DataAccess& access : reader.task->data) {
    const Datum& datum = context_.graph->data()[access.datum];
    if (datum.kind != DataKind::weights || datum.worker == reader.worker) continue;
    last =
        std::max(last, arrived_.try_emplace({access.datum, reader.worker}, reader.times.ready).first->second);
  }
  return last;
}

void TaskRunner::begin_move(void* argument) {
  Argument& begun = *static_cast<Argument*>(argument);
  begun.times.start = clock_seconds();
  begun.runner->parts_.progress.start(*begun.task);
  begun.runner->parts_.meter.start(*begun.task, begun.task->worker);
}

void TaskRunner::end_move(Argument& ended) {
  const TaskRunner& runner = *ended.runner;
  const StepParts& parts = runner.parts_;
  const Task& task = *ended.task;
  // Otherwise StarPU would keep the GPU's memory until the handle is dropped, as it keeps the host's after L.
  const std::vector<std::uint32_t> moved = runner.moved_stashes(task);
  const bool comes_from_gpu = task.kind == TaskKind::O ? !moved.empty() : moved.size() == 2;
  if (comes_from_gpu) {
    const int worker = runner.context_.graph->data()[moved.front()].worker;
    starpu_data_evict_from_node(parts.data.handle(moved.front()),
                                static_cast<unsigned>(runner.session_.memory_node(worker)));
  }
  ended.times.end = clock_seconds();
  parts.meter.end(task, task.worker, ended.times);
  parts.progress.end(task);
}

void TaskRunner::end_on_gpu(void* /*unused*/) {
  Argument& ended = *static_cast<Argument*>(starpu_task_get_current()->cl_arg);
  if (is_stash_copy(ended.task->kind)) return end_move(ended);
  // Where a policy chooses the worker, the task may have run on a core.
  if (starpu_worker_get_type(starpu_worker_get_id()) != STARPU_CUDA_WORKER) return;
  if (on_simgrid) note_simulated_start(ended);
  const StepParts& parts = ended.runner->parts_;
  ended.times.end = clock_seconds();
  note_result();
  parts.meter.end(*ended.task, ended.worker, ended.times);
  parts.finite.end(*ended.task);
  parts.data.drop_fetched(*ended.task);
  parts.progress.end(*ended.task);
}

ExpectedTimes::ExpectedTimes(const plan::Schedule& schedule, const plan::Costs* known)
    : schedule_(schedule),
      is_known_(known != nullptr),
      expected_(index(schedule.stages()) * index(schedule.slices()) * plan::pass_count,
                std::numeric_limits<double>::quiet_NaN()) {
  if (known == nullptr) return;
  for (const plan::JobId job : schedule.order()) expected_[position(job)] = known->time(schedule, job) * 1e6;
}

std::size_t ExpectedTimes::position(plan::JobId job) const {
  const plan::Job of = schedule_.job(job);
  const std::size_t slice =
      index(of.stage) * index(schedule_.slices()) + index(schedule_.slice(of.microbatch));
  return slice * plan::pass_count + index(of.pass);
}

void ExpectedTimes::learn(std::span<const JobRecord> jobs) {
  if (is_known_) return;
  std::vector<double> sums(expected_.size(), 0);
  std::vector<int> counts(expected_.size(), 0);
  for (const JobRecord& record : jobs) {
    const std::size_t at = position(record.job);
    sums[at] += (record.end - record.start) * 1e6;
    ++counts[at];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) expected_[i] = sums[i] / counts[i];
  }
}

}  // namespace starpipe::runtime
