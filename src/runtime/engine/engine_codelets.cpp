// SPDX-License-Identifier: Apache-2.0
// What StarPU calls: the engine's codelets, and the times that policies ask for.
#include <array>
#include <span>

#include "runtime/engine/engine.hpp"
#include "runtime/session/clock.hpp"

namespace starpipe::runtime {
namespace {

constexpr std::size_t task_kinds = static_cast<std::size_t>(TaskKind::optimize) + 1;

}  // namespace

starpu_codelet& Engine::codelet(TaskKind kind) {
  static starpu_perfmodel expected_time = [] {
    starpu_perfmodel model{};
    model.type = STARPU_PER_WORKER;
    model.worker_cost_function = expected_microseconds;
    return model;
  }();
  static std::array<starpu_codelet, task_kinds> codelets = [] {
    std::array<starpu_codelet, task_kinds> all{};
    for (std::size_t k = 0; k < all.size(); ++k) {
      starpu_codelet_init(&all[k]);
      all[k].cpu_funcs[0] = [](void** buffers, void* argument) { run_on_cpu(buffers, argument); };
#ifdef STARPIPE_WITH_CUDA
      all[k].cuda_funcs[0] = [](void** buffers, void* argument) { run_on_gpu(buffers, argument); };
      all[k].cuda_flags[0] = STARPU_CUDA_ASYNC;
#endif
      all[k].nbuffers = STARPU_VARIABLE_NBUFFERS;
      all[k].name = to_string(static_cast<TaskKind>(k)).data();
      all[k].model = &expected_time;
    }
    return all;
  }();
  return codelets[static_cast<std::size_t>(kind)];
}

// What policies that plan by time (dmdas, ...) are told: the mean of the stage and pass in the last step.
double Engine::expected_microseconds(starpu_task* task, unsigned /*worker*/, unsigned /*implementation*/) {
  const TaskArgument& what = *static_cast<const TaskArgument*>(task->cl_arg);
  if (!what.task->job) return 1;
  const Engine& engine = *what.engine;
  return engine.expected_[slot(engine.schedule_.job(*what.task->job))];
}

void Engine::learn_times() {
  std::vector<double> sums(expected_.size(), 0);
  std::vector<int> counts(expected_.size(), 0);
  for (const JobRecord& record : meter_.jobs()) {
    const std::size_t at = slot(schedule_.job(record.job));
    sums[at] += (record.end - record.start) * 1e6;
    ++counts[at];
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) expected_[i] = sums[i] / counts[i];
  }
}

const Engine::TaskMemory& Engine::memory_of(const Task& task, void** buffers) {
  thread_local TaskMemory memory;
  const auto words = [&](std::size_t i) {
    return model::Memory(reinterpret_cast<void*>(STARPU_VECTOR_GET_PTR(buffers[i])),
                         STARPU_VECTOR_GET_NX(buffers[i]));
  };
  memory.data.clear();
  for (std::size_t i = 0; i < task.data.size(); ++i) memory.data.push_back(words(i));
  memory.scratch = is_pass(task.kind) ? words(task.data.size()) : model::Memory{};
  return memory;
}

void Engine::run_on_cpu(void** buffers, void* argument) noexcept {
  const TaskArgument& what = *static_cast<const TaskArgument*>(argument);
  Engine& engine = *what.engine;
  const Task& task = *what.task;
  const TaskMemory& memory = memory_of(task, buffers);
  const int worker = engine.session_.logical_worker(static_cast<int>(starpu_worker_get_id_check()));
  const int received = engine.meter_.start(task, worker);
  if (engine.emulated_ == nullptr) {
    const double start = clock_seconds();
    run_kernel(engine.context_, task, memory.data, memory.scratch);
    engine.meter_.end(task, worker, start, clock_seconds());
  } else {
    const auto [start, end] = task.job ? engine.emulate(task, received) : EmulatedDevices::Span{};
    engine.meter_.end(task, worker, start, end);
  }
  engine.finished_.fetch_add(1, std::memory_order_relaxed);
}

// Returns when the kernels are on the stream; StarPU sees them end and calls finished_on_gpu.
void Engine::run_on_gpu(void** buffers, void* argument) noexcept {
  TaskArgument& what = *static_cast<TaskArgument*>(argument);
  Engine& engine = *what.engine;
  const TaskMemory& memory = memory_of(*what.task, buffers);
  what.worker = engine.session_.logical_worker(static_cast<int>(starpu_worker_get_id_check()));
  engine.meter_.start(*what.task, what.worker);
  engine.device_meters_.sample(what.worker);
  what.start = clock_seconds();
  run_kernel_on_stream(engine.context_, *what.task, memory.data, memory.scratch);
}

// An epilogue callback: the tasks that wait for this one are released afterwards.
void Engine::finished_on_gpu(void* /*argument*/) {
  // Where a policy chooses the worker, the task may have run on a core.
  if (starpu_worker_get_type(starpu_worker_get_id()) != STARPU_CUDA_WORKER) return;
  const TaskArgument& what = *static_cast<const TaskArgument*>(starpu_task_get_current()->cl_arg);
  what.engine->meter_.end(*what.task, what.worker, what.start, clock_seconds());
  what.engine->drop_fetched(*what.task);
  what.engine->finished_.fetch_add(1, std::memory_order_relaxed);
}

// Without links that send ahead, the device first fetches what it has not got, one after the other.
EmulatedDevices::Span Engine::emulate(const Task& task, int received) {
  const double fetched = links_ ? 0 : received * emulated_->alpha;
  const double duration = emulated_->duration(task.stage).of(schedule_.job(*task.job).pass);
  const auto [start, end] = devices_->run(fetched + duration);
  return {start + fetched, end};
}

}  // namespace starpipe::runtime
